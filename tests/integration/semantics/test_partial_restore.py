"""A ps that is killed and started again while the others keep what they have."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tensorwire.tf import PartialRestoreSaver

from .support import TensorFlowCluster, session_config, tf1

pytestmark = pytest.mark.timeout(180, func_only=True)


@pytest.fixture
def cluster(protocol: str) -> Iterator[TensorFlowCluster]:
    with TensorFlowCluster(protocol, {"ps": 2, "worker": 1}) as started:
        started.start_all()
        yield started


def restart(cluster: TensorFlowCluster, task: str) -> None:
    job, index = task.split(":")
    cluster.tasks[task].stop(signal.SIGKILL)
    cluster.ready(cluster.begin(job, int(index)))


class Trained:
    """A session, in the default graph, whose step adds 1 to each variable on two ps."""

    def __init__(
        self, cluster: TensorFlowCluster, checkpoints: Path, saver: Callable[[], Any]
    ) -> None:
        self.protocol = cluster.protocol
        with tf1.device(tf1.train.replica_device_setter(2, worker_device="/job:worker/task:0")):
            tf1.train.get_or_create_global_step()
            for use_resource in (True, False):
                for i in range(2):
                    self._variable(f"{use_resource}_{i}", [2], use_resource)
            self._variable("parts", [4], True, tf1.fixed_size_partitioner(2))
            self.variables = {each.op.name: each for each in tf1.global_variables()}
            self.train = tf.group(
                [tf1.assign_add(each, tf.ones_like(each)) for each in self.variables.values()]
            )
        self.session = tf1.train.MonitoredTrainingSession(
            master=cluster.target(),
            config=session_config(60_000),
            checkpoint_dir=str(checkpoints),
            scaffold=tf1.train.Scaffold(saver=saver()),
            save_checkpoint_steps=1_000_000,
            save_summaries_steps=0,
            save_summaries_secs=None,
            log_step_count_steps=None,
        )

    @staticmethod
    def _variable(name: str, shape: list[int], use_resource: bool, partitioner: Any = None) -> None:
        tf1.get_variable(
            name,
            shape,
            initializer=tf1.zeros_initializer(),
            use_resource=use_resource,
            partitioner=partitioner,
        )

    def on(self, device: str) -> set[str]:
        return {name for name, each in self.variables.items() if each.device == device}

    def values(self) -> dict[str, int]:
        """The number of steps that each variable has seen."""
        while True:
            try:
                found = self.session.run(self.variables)
                break
            except tf.errors.CancelledError:
                # On gRPC a step that has lost a task may fail so, after which a
                # MonitoredTrainingSession does not begin anew.
                assert self.protocol == "grpc"
        assert all(len(set(value.flat)) == 1 for value in found.values())
        return {name: int(value.flat[0]) for name, value in found.items()}


@pytest.fixture
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


@pytest.mark.usefixtures("graph")
def test_only_what_a_ps_has_lost_is_restored(cluster: TensorFlowCluster, tmp_path: Path) -> None:
    trained = Trained(cluster, tmp_path, PartialRestoreSaver)
    assert trained.on("/job:ps/task:0") | trained.on("/job:ps/task:1") == set(trained.variables)
    expected = saved = dict.fromkeys(trained.variables, 0)  # saved when the session began
    for lost in ("ps:1", "ps:1", "ps:0"):
        for _ in range(3):
            trained.session.run(trained.train)
        expected = {name: steps + 3 for name, steps in expected.items()}
        assert trained.values() == expected
        restart(cluster, lost)
        gone = trained.on(f"/job:ps/task:{lost[-1]}")
        # A session that has recovered saves what it begins with.
        expected = saved = {n: saved[n] if n in gone else k for n, k in expected.items()}
        assert trained.values() == expected
    trained.session.run(trained.train)
    restart(cluster, "ps:0")
    restart(cluster, "ps:1")
    assert trained.values() == saved
    trained.session.close()


def test_a_chief_that_is_started_again_takes_nothing_back(
    cluster: TensorFlowCluster, tmp_path: Path
) -> None:
    for steps in (3, 6):
        with tf.Graph().as_default():
            trained = Trained(cluster, tmp_path, PartialRestoreSaver)
            with pytest.raises(ZeroDivisionError), trained.session:
                for _ in range(3):
                    trained.session.run(trained.train)
                assert set(trained.values().values()) == {steps}
                raise ZeroDivisionError  # so that the end is not saved


@pytest.mark.usefixtures("graph")
def test_a_stock_saver_takes_all_back(cluster: TensorFlowCluster, tmp_path: Path) -> None:
    trained = Trained(cluster, tmp_path, tf1.train.Saver)
    for _ in range(3):
        trained.session.run(trained.train)
    restart(cluster, "ps:1")
    assert set(trained.values().values()) == {0}
    trained.session.close()


def test_it_saves_all_variables() -> None:
    with pytest.raises(TypeError, match="leave var_list out"):
        PartialRestoreSaver(var_list=[])
