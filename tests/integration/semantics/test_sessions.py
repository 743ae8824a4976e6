"""Sessions on a cluster: feeds and fetches, errors, deadlines, cancellation, several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .support import TensorFlowCluster, outcome, session_config, tf1

pytestmark = [pytest.mark.core, pytest.mark.timeout(120, method="thread", func_only=True)]

PS = "/job:ps/task:0"
W0 = "/job:worker/task:0"
W1 = "/job:worker/task:1"


class Background:
    """An action in its own thread; its outcome is awaited with a timeout."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._outcome: tuple[str, Any] | None = None

        def run() -> None:
            self._outcome = outcome(act)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def still_runs_after(self, wait_s: float) -> bool:
        self._thread.join(wait_s)
        return self._thread.is_alive()

    def outcome(self, timeout_s: float = 60.0) -> tuple[str, Any]:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"still blocked after {timeout_s:g} s"
        assert self._outcome is not None
        return self._outcome


def blocked_graph(name: str) -> tuple[tf.Graph, Any, Any, Any]:
    """A graph with a queue on the ps: (graph, dequeue on worker:1, enqueue, queue)."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            queue = tf1.FIFOQueue(1, [tf.float32], [[]], shared_name=name)
            dequeued = queue.dequeue()
            enqueue = queue.enqueue([tf.constant(4.5)])
        with tf.device(W1):
            result = dequeued + 1.0
    return graph, result, enqueue, queue


@pytest.mark.parametrize("master", ["worker:0", "worker:1", "ps:0"])
def test_feeds_and_fetches_on_every_task(cluster: TensorFlowCluster, master: str) -> None:
    value = np.arange(300_000, dtype=np.float32)

    def build() -> Any:
        fetches = []
        for i, device in enumerate([PS, W0, W1]):
            with tf.device(device):
                fed = tf1.placeholder(tf.float32, [None], name=f"fed_{i}")
                fetches.append([fed + 1.0, tf.reduce_max(fed), tf.strings.as_string(fed[:2])])
        return fetches

    results = cluster.run(build, {f"fed_{i}": value + i for i in range(3)}, master)
    for i, (added, maximum, words) in enumerate(results):
        np.testing.assert_array_equal(added, value + i + 1)
        assert maximum == 299_999 + i
        assert words.tolist() == [f"{i}.000000".encode(), f"{i + 1}.000000".encode()]


def test_a_fed_tensor_replaces_the_operation_that_would_make_it(
    cluster: TensorFlowCluster,
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            made = tf.constant([1.0, 2.0]) * 1.0
        with tf.device(W1):
            result = made + 0.5
        with cluster.session(graph) as session:
            assert session.run(result).tolist() == [1.5, 2.5]
            assert session.run(result, {made: [5.0, 6.0]}).tolist() == [5.5, 6.5]
            assert session.run([made, result], {made: [7.0, 8.0]})[0].tolist() == [7.0, 8.0]


def test_a_callable_and_a_partial_run_work(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            a = tf1.placeholder(tf.float32, [])
            b = tf1.placeholder(tf.float32, [])
            first = a + 1.0
        with tf.device(W1):
            second = first * b
        with cluster.session(graph) as session:
            both = session.make_callable([first, second], [a, b])
            assert both(2.0, 10.0) == [3.0, 30.0]
            handle = session.partial_run_setup([first, second], [a, b])
            assert session.partial_run(handle, first, {a: 1.0}) == 2.0
            assert session.partial_run(handle, second, {b: 8.0}) == 16.0


def test_a_full_trace_shows_the_operations_of_every_task(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            produced = tf.random.uniform([1000], name="produced")
        with tf.device(W1):
            total = tf.reduce_sum(produced, name="total")
        with cluster.session(graph) as session:
            metadata = tf1.RunMetadata()
            options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
            session.run(total, options=options, run_metadata=metadata)
            session.run(total)
    nodes = {
        (device.device.split("/device")[0], node.node_name)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
    }
    names_by_task = {
        task: {name for device, name in nodes if task in device}
        for task in ("/job:ps/replica:0/task:0", "/job:worker/replica:0/task:1")
    }
    assert any("produced" in name for name in names_by_task["/job:ps/replica:0/task:0"])
    assert any("total" in name for name in names_by_task["/job:worker/replica:0/task:1"])


def test_a_full_trace_shows_the_tensors_that_a_task_received(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            produced = tf.random.uniform([1000], name="received_here")
        with tf.device(W1):
            total = tf.reduce_sum(produced)
        with cluster.session(graph) as session:

            def received(**options: Any) -> list[tuple[str, Any]]:
                metadata = tf1.RunMetadata()
                session.run(total, options=tf1.RunOptions(**options), run_metadata=metadata)
                return [
                    (device.device, node)
                    for device in metadata.step_stats.dev_stats
                    for node in device.node_stats
                    if node.node_name == "RecvTensor" and "received_here" in node.timeline_label
                ]

            # Requested at first, then pushed. A step does not wait until all tasks have been told
            # that it is traced, so several are.
            for _ in range(2):
                traces = (received(trace_level=tf1.RunOptions.FULL_TRACE) for _ in range(100))
                ((device, node),) = next(filter(None, traces))
                assert device == "/job:worker/replica:0/task:1/device:CPU:0"
                assert "/RandomUniform from /job:ps/replica:0/task:0/dev" in node.timeline_label
                described = node.output[0].tensor_description.allocation_description
                assert described.requested_bytes == 4000
                assert 0 < node.all_end_rel_micros < 60e6
                assert abs(node.all_start_micros / 1e6 - time.time()) < 60
                assert received() == received() == []


def fed() -> Any:
    return tf1.placeholder(tf.float32, [None], name="x")


ERRORS: dict[str, tuple[Callable[[], Any], type[tf.errors.OpError], str]] = {
    "reshape": (
        lambda: tf.reshape(fed(), [2, 2]),
        tf.errors.InvalidArgumentError,
        "Input to reshape is a tensor with 3 values, but the requested shape has 4",
    ),
    "check": (
        lambda: tf.debugging.check_numerics(fed() / 0.0, "it says: not finite \u2713"),
        tf.errors.InvalidArgumentError,
        "it says: not finite \u2713 : Tensor had Inf",
    ),
    "missing-file": (
        lambda: fed() + tf.strings.to_number(tf.io.read_file(tf.constant("/no/such/file"))),
        tf.errors.NotFoundError,
        "/no/such/file; No such file or directory",
    ),
    "uninitialized": (
        lambda: fed() + tf1.get_variable("never_initialized", [], use_resource=True),
        tf.errors.FailedPreconditionError,
        "never_initialized",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_on_the_ps_reaches_the_client_with_its_class_and_message(
    cluster: TensorFlowCluster, kind: str
) -> None:
    failing, error, words = ERRORS[kind]
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            failed = tf.identity(failing())
        with tf.device(W1):
            moved = failed * 2.0
            unharmed = tf.identity(graph.get_tensor_by_name("x:0")) + 1.0
        with tf.device(W0):
            result = moved + 1.0
        with cluster.session(graph) as session:
            for _ in range(3):
                with pytest.raises(error) as caught:
                    session.run(result, {"x:0": [1.0, 2.0, 3.0]})
                assert words in caught.value.message
                assert session.run(unharmed, {"x:0": [1.0]}).tolist() == [2.0]


def test_one_error_ends_a_step_that_waits_elsewhere(cluster: TensorFlowCluster) -> None:
    graph, waiting, _, _ = blocked_graph("waits_for_error")
    with graph.as_default():
        with tf.device(W0):
            # It fails only on request, because TensorFlow does not cancel the others if it fails
            # too early.
            values = tf1.FIFOQueue(1, [tf.float32], [[]], shared_name="cause_of_error")
            failing = tf.debugging.check_numerics(values.dequeue(), "the cause")
            fail = values.enqueue([float("nan")])
        with cluster.session(graph) as session:
            step = Background(lambda: session.run([waiting, failing]))
            assert step.still_runs_after(0.5)
            session.run(fail)
            kind, message = step.outcome()
            assert kind == "InvalidArgumentError"
            assert "the cause" in message


def test_closing_a_session_ends_a_step_that_waits_on_the_ps(cluster: TensorFlowCluster) -> None:
    graph, waiting, _, _ = blocked_graph("closed_while_waiting")
    session = tf1.Session(cluster.target(), graph)
    step = Background(lambda: session.run(waiting))
    assert step.still_runs_after(0.5)
    session.close()
    assert step.outcome()[0] in ("CancelledError", "AbortedError")
    with cluster.session(graph) as again:
        step = Background(lambda: again.run(waiting))
        again.run(graph.get_operation_by_name("fifo_queue_enqueue"))
        # The cancelled dequeue must not consume an element later.
        assert step.outcome() == ("value", 5.5)


def test_cancelling_pending_operations_of_a_queue_reaches_the_waiting_client(
    cluster: TensorFlowCluster,
) -> None:
    graph, waiting, enqueue, queue = blocked_graph("closed_queue")
    with graph.as_default():
        close = queue.close(cancel_pending_enqueues=True)
        with cluster.session(graph) as session:
            session.run(enqueue)
            step = Background(lambda: session.run(enqueue))
            assert step.still_runs_after(0.3)
            session.run(close)
            assert step.outcome()[0] == "CancelledError"
            assert session.run(waiting) == 5.5
            with pytest.raises(tf.errors.OutOfRangeError, match="is closed and has insufficient"):
                session.run(waiting)


def test_a_coordinator_stops_queue_runners_that_wait_on_the_ps(
    cluster: TensorFlowCluster,
) -> None:
    graph, _, _, queue = blocked_graph("coordinated")
    with graph.as_default():
        with tf.device(W1):
            source = tf.random.uniform([])
        with tf.device(PS):
            enqueue = queue.enqueue([source])
        runner = tf1.train.QueueRunner(queue, [enqueue] * 2)
        with cluster.session(graph) as session:
            coordinator = tf1.train.Coordinator()
            threads = runner.create_threads(session, coordinator, start=True)
            assert 0 <= session.run(queue.dequeue()) < 1
            coordinator.request_stop()
            coordinator.join(threads, stop_grace_period_secs=30)


@pytest.mark.parametrize("how", ["session", "step"])
def test_a_step_past_its_deadline_fails_and_the_next_one_works(
    cluster: TensorFlowCluster, how: str
) -> None:
    graph, waiting, enqueue, _ = blocked_graph(f"late_{how}")
    timeout_ms = 2000  # the steps that do not wait take less, whatever else the machine does
    options = tf1.RunOptions(timeout_in_ms=timeout_ms) if how == "step" else None
    with cluster.session(graph, step_timeout_ms=timeout_ms if how == "session" else 0) as session:
        for _ in range(2):
            begin = time.monotonic()
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(waiting, options=options)
            assert 1.8 < time.monotonic() - begin < 30
            # The client may see the deadline before the master tells the ps. Until then, on either
            # protocol, the dequeue of the late step would consume the next element.
            time.sleep(1)
            session.run(enqueue)
            assert session.run(waiting, options=options) == 5.5


def test_sessions_of_several_threads_and_masters_train_at_once(
    cluster: TensorFlowCluster,
) -> None:
    steps, size = 40, 5000

    def train(number: int) -> Any:
        with tf.Graph().as_default() as graph:
            with tf.device(PS):
                variable = tf1.get_variable(
                    f"thread_{number}", [size], tf.int64, initializer=tf1.zeros_initializer()
                )
            with tf.device([W0, W1][number % 2]):
                delta = tf.range(size, dtype=tf.int64) + number
                update = variable.assign_add(delta)
            with cluster.session(graph, f"worker:{number % 2}") as session:
                session.run(variable.initializer)
                for _ in range(steps):
                    session.run(update.op)
                return session.run(variable)

    running = [Background(lambda n=n: train(n)) for n in range(6)]
    for number, background in enumerate(running):
        kind, value = background.outcome(90)
        assert kind == "value", value
        np.testing.assert_array_equal(value, steps * (np.arange(size) + number))


def test_steps_of_one_session_run_at_once(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            x = tf1.placeholder(tf.float32, [None])
            squared = x * x
        with tf.device(W1):
            total = tf.reduce_sum(squared)
        with cluster.session(graph) as session:

            def steps(number: int) -> list[float]:
                value = np.full([100 * (number + 1)], number, np.float32)
                return [float(session.run(total, {x: value})) for _ in range(30)]

            running = [Background(lambda n=n: steps(n)) for n in range(6)]
            for number, background in enumerate(running):
                expected = [100.0 * (number + 1) * number**2] * 30
                assert background.outcome(60) == ("value", expected)


def test_sessions_share_what_lives_on_the_ps(cluster: TensorFlowCluster) -> None:
    def graph_of(name: str) -> tuple[tf.Graph, Any]:
        with tf.Graph().as_default() as graph, tf.device(PS):
            return graph, tf1.get_variable(name, [], tf.int32, initializer=tf1.zeros_initializer())

    first_graph, first = graph_of("shared_between_sessions")
    second_graph, second = graph_of("shared_between_sessions")
    with first_graph.as_default():
        add = first.assign_add(5)
    with cluster.session(first_graph) as one, cluster.session(second_graph, "worker:1") as other:
        one.run(first.initializer)
        one.run(add)
        assert other.run(second) == 5


def test_a_graph_that_grows_in_a_session_is_extended_everywhere(
    cluster: TensorFlowCluster,
) -> None:
    with tf.Graph().as_default() as graph, cluster.session(graph) as session:
        with tf.device(PS):
            tensor = tf.constant(1.0) + 0.0
        for i in range(6):
            with tf.device([W0, W1, PS][i % 3]):
                tensor = tensor * 2.0
            assert session.run(tensor) == 2.0 ** (i + 1)


def test_a_reset_ends_sessions_and_clears_variables_as_on_grpc(
    grpc_cluster: TensorFlowCluster, wire_cluster: TensorFlowCluster
) -> None:
    def after_reset(cluster: TensorFlowCluster) -> Any:
        with tf.Graph().as_default() as graph:
            with tf.device(PS):
                variable = tf1.get_variable(
                    "cleared", [], tf.float32, initializer=tf1.ones_initializer()
                )
            with tf.device(W1):
                result = variable + 1.0
            session = tf1.Session(cluster.target(), graph)
            session.run(variable.initializer)
            assert session.run(result) == 2.0
            tf1.Session.reset(cluster.target())
            old = outcome(lambda: session.run(result))
            with cluster.session(graph) as fresh:
                cleared = outcome(lambda: fresh.run(result))[0]
                fresh.run(variable.initializer)
                return old, cleared, fresh.run(result)

    expected = after_reset(grpc_cluster)
    assert expected[1:] == ("FailedPreconditionError", 2.0)
    assert after_reset(wire_cluster) == expected


def test_a_reset_of_one_container_leaves_the_others(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        variables = {}
        for name in ("kept", "gone"):
            with tf.device(PS), graph.container(f"container_{name}"):
                variables[name] = tf1.get_variable(
                    name, [], tf.float32, initializer=tf1.ones_initializer()
                )
        with cluster.session(graph) as session:
            session.run([v.initializer for v in variables.values()])
        tf1.Session.reset(cluster.target(), containers=["container_gone"])
        with cluster.session(graph) as session:
            assert session.run(variables["kept"]) == 1.0
            with pytest.raises(tf.errors.FailedPreconditionError):
                session.run(variables["gone"])


def test_sessions_that_isolate_their_state_share_no_variable(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            variable = tf1.get_variable("isolated", [1000], initializer=tf1.zeros_initializer())
        with tf.device(W1):
            update = tf1.assign_add(variable, tf.ones([1000]) + 0.0 * variable)
        config = session_config()
        config.isolate_session_state = True
        with (
            tf1.Session(cluster.target(), graph, config) as first,
            tf1.Session(cluster.target(), graph, config) as second,
            cluster.session(graph) as shared,
        ):
            first.run(variable.initializer)
            for _ in range(3):
                first.run(update.op)
            for other in (second, shared):
                with pytest.raises(tf.errors.FailedPreconditionError):
                    other.run(variable)
            second.run(variable.initializer)
            second.run(update.op)
            assert first.run(variable).tolist() == [3.0] * 1000
            assert second.run(variable).tolist() == [1.0] * 1000


def test_devices_of_all_tasks_are_listed(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph, cluster.session(graph) as session:
        names = {device.name.split("/device")[0] for device in session.list_devices()}
    assert names == {
        "/job:ps/replica:0/task:0",
        "/job:worker/replica:0/task:0",
        "/job:worker/replica:0/task:1",
    }


@pytest.mark.every_version
def test_the_data_plane_carries_the_tensors(wire_cluster: TensorFlowCluster) -> None:
    steps, size = 10, 250_000
    before = {name: wire_cluster.stats(name) for name in ("ps:0", "worker:0", "worker:1")}
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            produced = tf.random.uniform([size])
        with tf.device(W1):
            total = tf.reduce_sum(produced)
        with wire_cluster.session(graph) as session:
            for _ in range(steps):
                session.run(total)
    after = {name: wire_cluster.stats(name) for name in before}

    def grown(task: str, *names: str) -> int:
        return sum(after[task][name] - before[task][name] for name in names)

    # Through shared memory or TCP, depending on the machine.
    sent = grown("ps:0", "tx_bytes", "lent_bytes")
    received = grown("worker:1", "rx_bytes", "read_bytes")
    assert steps * size * 4 <= sent < steps * size * 4 * 1.1
    assert steps * size * 4 <= received < steps * size * 4 * 1.1
    # worker:0 is the master, and its messages to both tasks in every step use grpc++, too.
    assert grown("worker:0", "tx_frames") >= 2 * steps
