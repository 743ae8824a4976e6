"""What an operation waits for without an edge is never made to wait for that operation.

Each graph here stands still if a rewrite makes two things wait for each other. A step that does not
end fails by its deadline (STEP_TIMEOUT_MS).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from .fusing import fusing_session, total, with_and_without
from .support import TensorFlowCluster, tf1

pytestmark = pytest.mark.timeout(120, method="thread", func_only=True)

PS = "/job:ps/task:0"
W0 = "/job:worker/task:0"

Ends = tuple[Callable[[Any], Any], Callable[[], Any]]
"""What puts a value somewhere, and what takes it there."""


def queue(name: str) -> Ends:
    made = tf1.FIFOQueue(10, [tf.float32], [[]], shared_name=name)
    return lambda value: made.enqueue([value]), made.dequeue


def queue_of_many(name: str) -> Ends:
    made = tf1.FIFOQueue(10, [tf.float32], [[]], shared_name=name)
    return lambda value: made.enqueue_many([[value]]), lambda: made.dequeue_up_to(1)[0]


def priority_queue(name: str) -> Ends:
    made = tf1.PriorityQueue(10, [tf.float32], [[]], shared_name=name)
    return lambda value: made.enqueue([tf.constant(1, tf.int64), value]), lambda: made.dequeue()[1]


def stage(name: str) -> Ends:
    return (
        lambda value: tf.raw_ops.Stage(values=[value], shared_name=name),
        lambda: tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name=name)[0],
    )


def stage_looked_at(name: str) -> Ends:
    return (
        lambda value: tf.raw_ops.Stage(values=[value], shared_name=name),
        lambda: tf.raw_ops.StagePeek(index=0, dtypes=[tf.float32], shared_name=name)[0],
    )


def map_stage(name: str) -> Ends:
    key = tf.constant(1, tf.int64)
    dtypes = [tf.float32]
    return (
        lambda value: tf.raw_ops.MapStage(
            key=key, indices=[0], values=[value], dtypes=dtypes, shared_name=name
        ),
        lambda: tf.raw_ops.MapUnstage(key=key, indices=[0], dtypes=dtypes, shared_name=name)[0],
    )


def accumulator(name: str) -> Ends:
    made = tf1.ConditionalAccumulator(tf.float32, [], shared_name=name)
    # A gradient of an earlier step than that of the last take is dropped.
    return lambda value: made.apply_grad(value, local_step=100), lambda: made.take_grad(1)


def sparse_accumulator(name: str) -> Ends:
    made = tf1.SparseConditionalAccumulator(tf.float32, [1], shared_name=name)
    return (
        lambda value: made.apply_grad([0], tf.reshape(value, [1]), local_step=100),
        lambda: made.take_grad(1)[1][0],
    )


def barrier(name: str) -> Ends:
    made = tf.raw_ops.Barrier(component_types=[tf.float32], shapes=[[]], shared_name=name)
    return (
        lambda value: tf.raw_ops.BarrierInsertMany(
            handle=made, keys=["key"], values=tf.reshape(value, [1]), component_index=0
        ),
        lambda: tf.raw_ops.BarrierTakeMany(
            handle=made, num_elements=1, component_types=[tf.float32]
        )[2][0],
    )


def function_that_waits(name: str) -> Ends:
    put, take = queue(name)

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def taken() -> Any:
        return take() + 0.0

    return put, taken


ENDS = (
    queue,
    queue_of_many,
    priority_queue,
    stage,
    stage_looked_at,
    map_stage,
    accumulator,
    sparse_accumulator,
    barrier,
    function_that_waits,
)


@pytest.mark.parametrize("ends", ENDS, ids=lambda ends: ends.__name__)
def test_what_is_put_and_taken_in_one_step(
    fusing_cluster: TensorFlowCluster, ends: Callable[[str], Ends]
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            put, take = ends(f"waiting_{ends.__name__}_{fusing_cluster.protocol}")
        with tf.device(PS):
            start = tf1.placeholder_with_default(1.0, []) + 0.0
        with tf.device(W0):
            first = start + 1.0
            second = take() + 1.0
        with tf.device(PS):
            there = first * 10.0
            result = second + 0.5
        with tf.device(W0):
            done = put(there)
        fused, single = with_and_without(fusing_cluster, graph, [result, done])
    assert fused == single == [("value", [21.5, None])]


@pytest.mark.parametrize("kind", ["queue", "stage"])
def test_a_full_queue_waits_for_what_is_taken(fusing_cluster: TensorFlowCluster, kind: str) -> None:
    with tf.Graph().as_default() as graph:
        name = f"full_{kind}_{fusing_cluster.protocol}"
        with tf.device(W0):
            if kind == "queue":
                made = tf1.FIFOQueue(1, [tf.float32], [[]], shared_name=name)
                put: Any = lambda value: made.enqueue([value])  # noqa: E731
                take: Any = made.dequeue
            else:
                put = lambda value: tf.raw_ops.Stage(  # noqa: E731
                    values=[value], capacity=1, shared_name=name
                )
                take = lambda: tf.raw_ops.Unstage(  # noqa: E731
                    dtypes=[tf.float32], capacity=1, shared_name=name
                )[0]
            with tf.control_dependencies([put(tf.constant(1.0))]):
                one_more = put(tf.constant(2.0))  # is over when one has been taken
            with tf.control_dependencies([one_more]):
                first = tf1.placeholder_with_default(3.0, []) + 0.0
            second = tf1.placeholder_with_default(4.0, []) + 0.0
        with tf.device(PS):
            results = [first + 0.5, second + 0.5]
        with tf.control_dependencies([results[1]]), tf.device(W0):
            taken = take()
        with tf.control_dependencies([results[0], taken]), tf.device(W0):
            last = take()
        fused, single = with_and_without(fusing_cluster, graph, [*results, taken, last])
    assert fused == single == [("value", [3.5, 4.5, 1.0, 2.0])]


@pytest.mark.parametrize("rewrite", ["bundles", "exact_rewrites"])
def test_two_holders_of_a_lock_are_never_one_operation(
    fusing_cluster: TensorFlowCluster, rewrite: str
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            variable = tf1.get_variable("counted", initializer=0.0, use_resource=True)
            section = tf.CriticalSection(shared_name=f"section_{fusing_cluster.protocol}_{rewrite}")

            def count() -> Any:
                before = variable.read_value()
                with tf.control_dependencies([before]):
                    added = variable.assign_add(1.0)
                with tf.control_dependencies([added]):
                    return tf.identity(variable.read_value())

            counts = [section.execute(count) for _ in range(6)]
        with fusing_session(fusing_cluster, graph, rewrite) as session:
            session.run(variable.initializer)
            assert sorted(session.run(counts)) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_what_a_loop_waits_for_never_holds_up_what_leaves_it(
    fusing_cluster: TensorFlowCluster, control_flow: str
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            name = f"before_a_loop_{control_flow}_{fusing_cluster.protocol}"
            made = tf1.FIFOQueue(1, [tf.float32], [[]], shared_name=name)
            taken = made.dequeue()
            _, looped = tf1.while_loop(
                lambda i, _: i < 3, lambda i, value: (i + 1, value + 1.0), [tf.constant(0), taken]
            )
            first = tf1.placeholder_with_default(5.0, []) + 0.0
        with tf.device(PS):
            results = [first + 0.5, looped + 0.5]
        with tf.device(W0):
            put = made.enqueue([results[0]])
        fused, single = with_and_without(fusing_cluster, graph, [*results, put])
    assert fused == single == [("value", [5.5, 9.0, None])]


def test_bundles_before_and_behind_a_loop_do_not_wait_for_each_other(
    fusing_cluster: TensorFlowCluster, control_flow: str
) -> None:
    """An Exit may wait for an Enter that no path connects with it."""
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            fed = tf1.placeholder_with_default([[1.0, 2.0]] * 4, [4, 2])
            begin = tf1.placeholder_with_default(0, [])
            rounds, kept = tf1.while_loop(
                lambda i, _: i < 20,
                lambda i, value: (i + 1, tf.identity(value)),
                [tf.constant(0), tf.strided_slice(fed, [begin], [begin + 1])],
                parallel_iterations=2,
            )
            others = [tf.strided_slice(fed, [rounds - 20 + i], [rounds - 19 + i]) for i in range(4)]
        found, single = with_and_without(
            fusing_cluster, graph, [tf.add_n(others), kept], rewrite="bundles"
        )
    assert [kind for kind, _ in found] == ["value"]
    assert str(found) == str(single)


def test_references_are_read_by_bundled_lookups(fusing_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            tables = [
                tf1.get_variable(f"referred_{i}", [10, 4], use_resource=False) for i in range(4)
            ]
            rows = [
                tf1.gather(tf1.assign(table, tf.ones([10, 4]) * i), [1, 2])
                for i, table in enumerate(tables)
            ]
        with fusing_session(fusing_cluster, graph, "bundles") as session:
            session.run(tf1.global_variables_initializer())
            assert [each.tolist() for each in session.run(rows)] == [
                [[float(i)] * 4] * 2 for i in range(4)
            ]


@pytest.mark.parametrize("rewrite", ["tensor_fuse", "bundles", "exact_rewrites"])
@pytest.mark.parametrize("is_finalized", [False, True])
def test_a_partial_run_is_not_rewritten(
    fusing_cluster: TensorFlowCluster, rewrite: str, is_finalized: bool
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            fed = [tf1.placeholder(tf.float32, [2]) for _ in range(2)]
            sums = [value[0:1] + value[1:2] for value in fed]
        with tf.device(PS):
            results = [value * 2.0 for value in sums]
        if is_finalized:
            graph.finalize()
        found: list[Any] = []

        def run() -> None:  # a partial run that hangs cannot be interrupted
            with fusing_session(fusing_cluster, graph, rewrite) as session:
                for _ in range(2):
                    handle = session.partial_run_setup(results, fed)
                    one = session.partial_run(handle, results[0], {fed[0]: [1.0, 2.0]})
                    found.append(session.partial_run(handle, results[1], {fed[1]: [one[0], 1.0]}))
                whole = dict(zip(fed, [[1.0, 2.0], [6.0, 1.0]], strict=True))
                found.append(session.run(results, whole)[1])

        running = threading.Thread(target=run, daemon=True)
        running.start()
        running.join(30)
        assert [each.tolist() for each in found] == [[14.0]] * 3
        assert graph.finalized == is_finalized


def test_what_a_merge_revives_is_fused(fusing_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            choices = tf1.placeholder(tf.bool, [10])
            merged = []
            for i in range(10):
                off, on = tf.raw_ops.Switch(data=tf.fill([2], float(i)), pred=choices[i])
                merged.append(tf.raw_ops.Merge(inputs=[off + 0.25, on + 0.5])[0])
        with tf.device(W0):
            results = [tf.reduce_sum(value) for value in merged]
        with fusing_session(fusing_cluster, graph) as session:
            before = total(fusing_cluster, "fused_tensors")
            for step in range(3):
                chosen = [(i + step) % 3 == 0 for i in range(10)]
                expected = [2 * (i + (0.5 if c else 0.25)) for i, c in enumerate(chosen)]
                assert session.run(results, {choices: chosen}) == expected
            assert total(fusing_cluster, "fused_tensors") - before >= 3 * 10
