"""Tensor fusion: the same results, fewer messages, no deadlock."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import processes

from .fusing import fusing_session, total, with_and_without
from .support import TensorFlowCluster, results_of, tf1

pytestmark = [pytest.mark.core, pytest.mark.timeout(120, method="thread", func_only=True)]

PS = "/job:ps/task:0"
W0 = "/job:worker/task:0"
W1 = "/job:worker/task:1"


@pytest.mark.every_version
def test_fifty_tensors_travel_in_one_message(fusing_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            parts = [tf.fill([i], float(i)) for i in range(50)]
        with tf.device(W0):
            results = [part + 1.0 for part in parts]
            twice = [part * 2.0 for part in parts]  # needs tensors that have already crossed
        with fusing_session(fusing_cluster, graph) as session:
            session.run([results, twice])
            before = [total(fusing_cluster, name) for name in ("fused_messages", "fused_tensors")]
            received = fusing_cluster.stats("worker:0")["recv_tensors"]
            for _ in range(3):
                found, doubled = session.run([results, twice])
            after = [total(fusing_cluster, name) for name in ("fused_messages", "fused_tensors")]
            received = fusing_cluster.stats("worker:0")["recv_tensors"] - received
    assert [v.tolist() for v in found] == [[i + 1.0] * i for i in range(50)]
    assert [v.tolist() for v in doubled] == [[i * 2.0] * i for i in range(50)]
    assert np.subtract(after, before).tolist() == [3, 150]
    if fusing_cluster.protocol == "grpc++":
        assert received == 3


def test_what_a_tensor_leads_to_never_travels_with_it(fusing_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            first = [tf1.placeholder_with_default(float(i), []) + 1.0 for i in range(2)]
        with tf.device(PS):
            back = [value * 10.0 for value in first]
        with tf.device(W0):
            second = [value + 1.0 for value in back]
        with tf.device(PS):
            results = [a + b for a, b in zip(first, second, strict=True)]
        with fusing_session(fusing_cluster, graph) as session:
            before = total(fusing_cluster, "fused_messages")
            assert session.run(results) == [12.0, 23.0]
            # To the worker, back, to the worker again, and the results to the master.
            assert total(fusing_cluster, "fused_messages") - before == 4


def test_a_control_edge_is_a_way_too(fusing_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            first = tf1.placeholder_with_default(1.0, []) + 1.0
        with tf.device(PS):
            there = first * 10.0
        with tf.control_dependencies([there]), tf.device(W0):
            second = tf1.placeholder_with_default(2.0, []) + 1.0
        with tf.device(PS):
            result = second + 0.5
        fused, single = with_and_without(fusing_cluster, graph, [there, result])
    assert fused == single == [("value", [20.0, 3.5])]


def test_what_leaves_a_loop_never_travels_with_what_the_loop_waits_for(
    fusing_cluster: TensorFlowCluster, control_flow: str
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            start = tf1.placeholder_with_default(1.0, []) + 1.0
        with tf.device(PS):
            invariant = start * 10.0
        with tf.device(W0):
            # The graph has no path from `invariant` to `rounds`, but iteration 3 does not begin
            # before iteration 1 has received it.
            rounds, kept = tf1.while_loop(
                lambda i, _: i < 20,
                lambda i, value: (i + 1, tf.identity(value)),
                [tf.constant(0), invariant],
                parallel_iterations=2,
            )
        with tf.device(PS):
            results = [rounds * 2, kept + 1.0]
        fused, single = with_and_without(fusing_cluster, graph, results)
    assert fused == single == [("value", [40, 21.0])]


def test_what_a_queue_gives_never_travels_with_what_fills_it(
    fusing_cluster: TensorFlowCluster,
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            queue = tf1.FIFOQueue(1, [tf.float32], [[]], shared_name="fuse_queue")
            first = tf1.placeholder_with_default(1.0, []) + 1.0
            second = queue.dequeue() + 1.0
        with tf.device(PS):
            there = first * 10.0
            result = second + 0.5
        with tf.device(W0):
            enqueue = queue.enqueue([there])
        fused, single = with_and_without(fusing_cluster, graph, [result, enqueue])
    assert fused == single == [("value", [21.5, None])]


def test_tensors_of_different_branches_are_not_fused(fusing_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            choices = tf1.placeholder(tf.bool, [20])
            pairs = [
                tf.raw_ops.Switch(data=tf.fill([i + 1], float(i)), pred=choices[i])
                for i in range(20)
            ]
            pairs = [(tf.reduce_sum(off), tf.reduce_sum(on)) for off, on in pairs]
        with tf.device(W1):
            pairs = [(off + 0.25, on + 0.5) for off, on in pairs]
        with tf.device(W0):
            merged = [tf.raw_ops.Merge(inputs=list(pair))[0] for pair in pairs]
        with fusing_session(fusing_cluster, graph) as session:
            before = total(fusing_cluster, "fused_tensors")
            for step in range(4):
                chosen = [(i + step) % 3 == 0 for i in range(20)]
                expected = [i * (i + 1) + (0.5 if c else 0.25) for i, c in enumerate(chosen)]
                assert session.run(merged, {choices: chosen}) == expected
            assert total(fusing_cluster, "fused_tensors") == before


def test_tensors_of_one_branch_travel_together(fusing_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            choice = tf1.placeholder(tf.bool, [])
            pairs = [
                tf.raw_ops.Switch(data=tf.fill([i + 1], float(i)), pred=choice) for i in range(5)
            ]
            pairs = [(tf.reduce_sum(off), tf.reduce_sum(on)) for off, on in pairs]
        with tf.device(W1):
            pairs = [(off + 0.25, on + 0.5) for off, on in pairs]
        with tf.device(W0):
            merged = [tf.raw_ops.Merge(inputs=list(pair))[0] for pair in pairs]
        with fusing_session(fusing_cluster, graph) as session:
            for step in range(4):
                before = total(fusing_cluster, "fused_tensors")
                more = 0.5 if step % 2 else 0.25
                expected = [i * (i + 1) + more for i in range(5)]
                assert session.run(merged, {choice: step % 2 == 1}) == expected
                # Those of the branch that is taken: from the ps, and from the worker.
                assert total(fusing_cluster, "fused_tensors") - before == 10


@pytest.mark.every_version
def test_tensors_of_every_kind_arrive_as_they_left(fusing_cluster: TensorFlowCluster) -> None:
    values: list[Any] = [
        np.arange(6, dtype=np.float16).reshape(2, 3),
        np.array([], dtype=np.float64).reshape(0, 4),
        np.array(7, dtype=np.int8),
        np.array([True, False, True]),
        np.array([1 + 2j], dtype=np.complex64),
        np.array([[b"", b"ab"], [b"\0\xff", b"x" * 3000]], dtype=object),
        np.array(b"scalar", dtype=object),
        np.arange(2000, dtype=np.int64),
        np.array(3.5, dtype=np.float32),
    ]
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            fed = [
                tf1.placeholder(tf.string if v.dtype == object else v.dtype, [None] * v.ndim)
                for v in values
            ]
            fed_here = [tf.identity(value) for value in fed]
            halves = tf.cast(fed_here[-1], tf.bfloat16)
        with tf.device(W1):
            arrived = [tf.identity(value) for value in fed_here]
            wide = tf.cast(halves, tf.float32)
        feed = dict(zip(fed, values, strict=True))
        with fusing_session(fusing_cluster, graph) as session:
            *found, half = session.run([*arrived, wide], feed)
    assert half == 3.5
    for value, got in zip(values, found, strict=True):
        as_array = np.asarray(got, dtype=value.dtype)  # a scalar string is returned as bytes
        assert as_array.shape == value.shape
        np.testing.assert_array_equal(as_array, value)


def test_large_tensors_travel_in_the_same_message(fusing_cluster: TensorFlowCluster) -> None:
    large = np.arange(1_000_000, dtype=np.float32)
    text = np.array([b"abc" * 100_000, b"d"], dtype=object)
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            sent = [tf.identity(tf1.placeholder(tf.float32, [None])) for _ in range(4)]
            words = tf.identity(tf1.placeholder(tf.string, [None]))
        with tf.device(W0):
            got = [tf.identity(value) for value in [*sent, words]]
        fed = [value.op.inputs[0] for value in [*sent, words]]
        with fusing_session(fusing_cluster, graph) as session:
            for step in range(4):
                values = [large + step, large[:3], large[:500_000], large[:0], text]
                received = fusing_cluster.stats("worker:0")["recv_tensors"]
                found = session.run(got, dict(zip(fed, values, strict=True)))
                received = fusing_cluster.stats("worker:0")["recv_tensors"] - received
                for value, one in zip(values, found, strict=True):
                    np.testing.assert_array_equal(one, value)
                if fusing_cluster.protocol == "grpc++":
                    assert received == 1


def test_a_kept_part_is_not_changed_by_the_next_message(
    fusing_cluster: TensorFlowCluster,
) -> None:
    with tf.Graph().as_default() as graph:
        fed = [tf1.placeholder(tf.float32, [5000]) for _ in range(3)]
        with tf.device(PS):
            kept = [tf1.get_variable(f"kept_part_{i}", [5000], use_resource=True) for i in range(3)]
        with tf.device(W0):
            sent = [value + 0.0 for value in fed]
        with tf.device(PS):
            assign = [v.assign(value) for v, value in zip(kept, sent, strict=True)]
            assign_first = kept[0].assign(sent[0] + sent[1] - sent[1])
            add = kept[1].assign_add(tf.ones([5000]))
        with fusing_session(fusing_cluster, graph) as session:
            for step in range(5):
                values = [np.full(5000, 10.0 * step + i, np.float32) for i in range(3)]
                session.run(assign, dict(zip(fed, values, strict=True)))
                session.run(add)
                changed = [np.full(5000, -1.0, np.float32)] * 3
                session.run(assign_first, dict(zip(fed, changed, strict=True)))
                found = [float(v[0]) for v in session.run([v.read_value() for v in kept])]
                assert found == [-1.0, 10.0 * step + 2, 10.0 * step + 2]


def test_a_producer_that_fails_ends_the_step_with_its_error(
    fusing_cluster: TensorFlowCluster,
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            divisor = tf1.placeholder(tf.float32, [])
            parts = [tf.fill([3], 1.0 / divisor), tf.ones([4])]
            parts[0] = tf.debugging.check_numerics(parts[0], "no number")
        with tf.device(W1):
            results = [tf.reduce_sum(part) for part in parts]
        fused, single = with_and_without(fusing_cluster, graph, results, {divisor: 0.0})
        for kind, message in [*fused, *single]:
            assert kind == "InvalidArgumentError"
            assert "no number : Tensor had Inf" in message
        with fusing_session(fusing_cluster, graph) as session:
            for _ in range(3):
                with pytest.raises(tf.errors.InvalidArgumentError):
                    session.run(results, {divisor: 0.0})
                assert session.run(results, {divisor: 1.0}) == [3.0, 4.0]


@pytest.mark.every_version
def test_a_silent_task_is_unavailable_to_a_step_that_fuses(plugin: None) -> None:
    """TensorFlow turns this error into InternalError in operations that do not communicate."""
    with (
        TensorFlowCluster("grpc++", {"ps": 1, "worker": 1}) as cluster,
        tf.Graph().as_default() as graph,
    ):
        cluster.start_all({"TENSORWIRE_PEER_TIMEOUT_S": "2"})
        with tf.device(PS):
            parts = [tf.fill([i], float(i)) for i in range(50)]
        with tf.device(W0):
            results = [part + 1.0 for part in parts]
        with fusing_session(cluster, graph) as session:
            session.run(results)
            silent = pytest.raises(tf.errors.UnavailableError, match="has been silent for 2 s")
            with processes.frozen(cluster.tasks["ps:0"]), silent as error:
                session.run(results)
            assert "non-communication op" not in str(error.value)


def test_tasks_without_the_plug_in_pass_over_the_request(grpc_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            parts = [tf.fill([i], 1.0) for i in range(3)]
        with tf.device(W0):
            results = [tf.reduce_sum(part) for part in parts]
        with fusing_session(grpc_cluster, graph) as session:
            assert session.run(results) == [0.0, 1.0, 2.0]


def test_a_task_without_the_plug_in_tells_what_it_needs(plugin: None) -> None:
    with TensorFlowCluster("grpc", {"ps": 1, "worker": 1}, plugin=True) as cluster:
        worker = cluster.begin("worker", 0)
        cluster.plugin = False
        cluster.ready(worker, cluster.begin("ps", 0))
        with tf.Graph().as_default() as graph:
            with tf.device(PS):
                parts = [tf.fill([i], 1.0) for i in range(3)]
            with tf.device(W0):
                results = [tf.reduce_sum(part) for part in parts]
            with (
                fusing_session(cluster, graph) as session,
                pytest.raises(tf.errors.NotFoundError, match=r"import_tensorwire_tf_in_every_task"),
            ):
                session.run(results)


@pytest.mark.every_version
def test_functions_fuse_under_run(fusing_cluster: TensorFlowCluster, client_address: str) -> None:
    arguments = {
        "spec": {**fusing_cluster.spec, "client": [client_address]},
        "protocol": fusing_cluster.protocol,
    }
    script = Path(__file__).with_name("function_script.py")
    command = [sys.executable, "-m", "tensorwire.cli.main", "run"]
    before = total(fusing_cluster, "fused_tensors")
    found = results_of([*command, "--tensor-fuse", str(script), json.dumps(arguments)])
    expected = [[45.0 * (s if s > 2 else 1), 10.0 * (s if s > 2 else 1)] for s in range(5)]
    assert found == expected
    # At least ten to the worker, in five calls and three steps.
    assert total(fusing_cluster, "fused_tensors") - before >= 150
