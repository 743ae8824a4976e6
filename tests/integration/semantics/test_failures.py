"""Tasks that freeze, die and are restarted, and inputs that end."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import processes
from tensorwire.bench.lab import TaskProcess

from .support import (
    TensorFlowCluster,
    hear,
    outcome,
    task_environment,
    tf1,
)
from .test_sessions import Background

pytestmark = [pytest.mark.core, pytest.mark.timeout(240, method="thread", func_only=True)]

PS = "/job:ps/task:0"
W0 = "/job:worker/task:0"
W1 = "/job:worker/task:1"
_RECOVERY_TASK = Path(__file__).with_name("recovery_task.py")


class Chief:
    """recovery_task.py, controlled step by step."""

    def __init__(self, cluster: TensorFlowCluster, directory: Path, steps: int, save_every: int):
        arguments = {
            "spec": cluster.spec,
            "protocol": cluster.protocol,
            "directory": str(directory),
            "steps": steps,
            "save_every": save_every,
        }
        argv = [sys.executable, str(_RECOVERY_TASK), json.dumps(arguments)]
        self.task: TaskProcess = cluster.local.start(
            "worker", 0, argv, env=task_environment(), channel=True
        )

    def step(self) -> int | None:
        """Lets the chief run to the end of its next step; returns its number, None at the end."""
        message = hear(self.task)
        if "done" in message:
            return None
        # Every element has grown by one per step, so no update was lost or applied twice.
        assert message["least"] == message["greatest"] == message["step"]
        self.task.channel.send({"go": True})
        return int(message["step"])


# Not on gRPC, where a busy machine may see the cancellation of the step before its cause. It is a
# CancelledError then, from which MonitoredTrainingSession does not recover.
@pytest.mark.every_version
def test_training_recovers_from_the_checkpoint_when_the_ps_is_killed(
    plugin: None, tmp_path: Path
) -> None:
    steps, save_every, killed_after = 40, 10, 25
    with TensorFlowCluster("grpc++", {"ps": 1, "worker": 1}) as cluster:
        ps = cluster.begin("ps", 0)
        chief = Chief(cluster, tmp_path, steps, save_every)
        cluster.ready(ps)
        for expected in range(1, killed_after + 1):
            assert chief.step() == expected
        ps.stop(signal.SIGKILL)
        cluster.ready(cluster.begin("ps", 0))
        seen = [step for step in iter(chief.step, None)]
        # One more step may have been running when the ps died.
        if seen[0] == killed_after + 1:
            seen.pop(0)
        # A checkpoint is written at every tenth step or the step after it.
        assert seen[0] - 1 in (20, 21)
        assert seen == list(range(seen[0], steps + 1))
        cluster.local.wait([chief.task], 60)


# Not on gRPC, which keeps port and connections in the child.
def test_a_ps_that_has_forked_is_missed_at_once_and_starts_again(plugin: None) -> None:
    with TensorFlowCluster("grpc++", {"ps": 1, "worker": 1}) as cluster:
        cluster.start_all()
        with tf.Graph().as_default() as graph:
            with tf.device(PS):
                variable = tf1.Variable(tf.ones([1000]), use_resource=True)
            with tf.device(W0):
                total = tf.reduce_sum(variable)
            # Less than the time after which a silent peer counts as lost.
            with cluster.session(graph, step_timeout_ms=20_000) as session:
                session.run(variable.initializer)
                ps = cluster.tasks["ps:0"]
                child = ps.channel.request({"ask": "fork"}, 30)["child"]
                try:
                    assert session.run(total) == 1000
                    ps.stop(signal.SIGKILL)
                    with pytest.raises(tf.errors.UnavailableError):
                        session.run(total)
                    os.kill(child, 0)  # it lives
                    cluster.ready(cluster.begin("ps", 0))
                finally:
                    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("frozen", ["ps:0", "worker:1"])
def test_training_goes_on_when_a_frozen_task_thaws(cluster: TensorFlowCluster, frozen: str) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            variable = tf1.get_variable(
                f"frozen_{frozen[:-2]}", [10_000], tf.float32, initializer=tf1.zeros_initializer()
            )
        with tf.device(W1):
            add = variable.assign_add(tf.ones([10_000]) + 0.0 * variable.read_value())
        with cluster.session(graph) as session:
            session.run(variable.initializer)
            session.run(add.op)
            with processes.frozen(cluster.tasks[frozen]):
                step = Background(lambda: session.run(add.op))
                assert step.still_runs_after(3.0)
            assert step.outcome() == ("value", None)
            for _ in range(5):
                session.run(add.op)
            assert set(session.run(variable).tolist()) == {7.0}


@pytest.mark.every_version
def test_a_step_fails_while_a_worker_is_dead_and_sessions_work_when_it_is_back(
    protocol: str,
) -> None:
    def build() -> Any:
        with tf.device(PS):
            value = tf.random.uniform([1000], minval=1.0, maxval=2.0)
        with tf.device(W1):
            return tf.reduce_min(value)

    with TensorFlowCluster(protocol, {"ps": 1, "worker": 2}) as cluster:
        cluster.start_all()
        with tf.Graph().as_default() as graph:
            result = build()
            with tf1.Session(cluster.target(), graph) as session:
                assert session.run(result) >= 1.0
                cluster.tasks["worker:1"].stop(signal.SIGKILL)
                begin = time.monotonic()
                kind, _ = outcome(lambda: session.run(result))
                assert kind in ("UnavailableError", "AbortedError")
                assert time.monotonic() - begin < 30
                with tf.device(W0):
                    local = tf.constant(1) + 1
                cluster.ready(cluster.begin("worker", 1))
                # The old session belongs to the old process; this error tells a client to open a
                # new one.
                kind, _ = outcome(lambda: session.run([result, local]))
                assert kind in ("UnavailableError", "AbortedError")
        for _ in range(3):
            assert cluster.run(build) >= 1.0


def test_an_input_that_ends_is_out_of_range_and_nothing_in_the_log(
    grpc_cluster: TensorFlowCluster, wire_cluster: TensorFlowCluster
) -> None:
    def consume(cluster: TensorFlowCluster) -> tuple[list[float], str, str]:
        with tf.Graph().as_default() as graph:
            with tf.device(PS):
                dataset = tf1.data.Dataset.range(3)
                iterator = tf1.data.make_initializable_iterator(dataset)
                element = iterator.get_next()
            with tf.device(W1):
                result = element * 10
            with tf.device(W0):
                result = result + 1
            with cluster.session(graph) as session:
                session.run(iterator.initializer)
                before = cluster.log_sizes()
                values: list[float] = []
                with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence") as caught:
                    while True:
                        values.append(int(session.run(result)))
                # The next step works.
                session.run(iterator.initializer)
                assert session.run(result) == 1
                logged = cluster.logged_since(before)
        return values, caught.value.message.splitlines()[0], logged

    expected, wire = consume(grpc_cluster), consume(wire_cluster)
    assert wire[0] == expected[0] == [1, 11, 21]
    assert wire[1] == expected[1]

    def complaints(log: str) -> set[str]:
        """The source files in warnings and errors of a log."""
        return set(re.findall(r"(?:^|: )[WEF](?:\d{4} .*?| )(\S+\.cc):\d+\]", log, re.MULTILINE))

    # TensorFlow logs, as information, the end of a rendezvous and, depending on the running
    # partition, the cancellation of a RunGraph. grpc++ must add no warnings or errors.
    assert complaints(wire[2]) <= complaints(expected[2])
    assert "grpc++" not in wire[2]


def test_a_step_returns_that_fails_on_a_ps_before_it_has_sent_anything(
    cluster: TensorFlowCluster,
) -> None:
    """As `string_input_producer(num_epochs=4)` ends: a count on a ps, then an enqueue."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            epochs = tf1.get_variable(
                "epochs", [], tf.int64, tf1.zeros_initializer(), use_resource=False
            )
            count = epochs.count_up_to(4)
        with tf.device(W0):
            queue = tf1.FIFOQueue(1000, [tf.int64], shapes=[[]])
            with tf1.control_dependencies([count]):
                fill = queue.enqueue([tf.constant(1, tf.int64)])
        initialize = tf1.global_variables_initializer()
    session = tf1.Session(cluster.target(), graph)
    session.run(initialize)

    def fail_often() -> None:
        for _ in range(300):
            with pytest.raises(tf.errors.OutOfRangeError):
                for _ in range(5):
                    session.run(fill)

    assert Background(fail_often).outcome() == ("value", None)
    session.close()
