"""Branches, loops, control edges and functions whose parts are on different tasks."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from .support import TensorFlowCluster, tf1

pytestmark = [pytest.mark.core, pytest.mark.timeout(120, method="thread", func_only=True)]

PS = "/job:ps/task:0"
W0 = "/job:worker/task:0"
W1 = "/job:worker/task:1"


def test_a_dead_tensor_stays_dead_on_the_next_task(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            choice = tf1.placeholder(tf.bool, [])
            off, on = tf.raw_ops.Switch(data=tf.constant([1.0, 2.0]), pred=choice)
        with tf.device(W1):
            off, on = off * 10.0, on * 100.0
        with tf.device(W0):
            merged, index = tf.raw_ops.Merge(inputs=[off, on])
        with cluster.session(graph) as session:
            for chosen, values in [(True, [100.0, 200.0]), (False, [10.0, 20.0])] * 3:
                result = session.run([merged, index], {choice: chosen})
                assert (result[0].tolist(), result[1]) == (values, int(chosen))


def test_fetching_a_dead_tensor_is_an_error_and_the_next_step_works(
    cluster: TensorFlowCluster,
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            choice = tf1.placeholder(tf.bool, [])
            _, on = tf.raw_ops.Switch(data=tf.constant(1.0), pred=choice)
        with tf.device(W1):
            result = on + 1.0
        with cluster.session(graph) as session:
            with pytest.raises(tf.errors.OpError, match="was not valid"):
                session.run(result, {choice: False})
            assert session.run(result, {choice: True}) == 2.0


def test_many_dead_tensors_and_live_ones_cross_together(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            choices = tf1.placeholder(tf.bool, [40])
            pairs = [
                tf.raw_ops.Switch(data=tf.fill([i + 1], float(i)), pred=choices[i])
                for i in range(40)
            ]
        with tf.device(W1):
            merged = [
                tf.raw_ops.Merge(inputs=[tf.reduce_sum(off) + 0.25, tf.reduce_sum(on) + 0.5])[0]
                for off, on in pairs
            ]
        with cluster.session(graph) as session:
            for step in range(5):
                chosen = [(i + step) % 3 == 0 for i in range(40)]
                expected = [i * (i + 1) + (0.5 if c else 0.25) for i, c in enumerate(chosen)]
                assert session.run(merged, {choices: chosen}) == expected


def test_only_the_branch_that_is_taken_runs(cluster: TensorFlowCluster, control_flow: str) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            visits = tf1.get_variable("visits", [2], tf.int32, initializer=tf1.zeros_initializer())
            value = tf.identity(tf1.placeholder(tf.float32, [3], name="value"))

        def branch(index: int, factor: float) -> Any:
            with tf.device(PS):
                visit = visits.scatter_nd_add([[index]], [1])
            with tf.control_dependencies([visit]), tf.device(W1):
                return value * factor

        with tf.device(W0):
            choice = tf1.placeholder(tf.bool, [], name="choice")
            result = tf1.cond(choice, lambda: branch(0, 2.0), lambda: branch(1, 3.0))
        with cluster.session(graph) as session:
            session.run(visits.initializer)
            for chosen, factor in [(True, 2.0), (False, 3.0), (False, 3.0)]:
                feed = {"choice:0": chosen, "value:0": [1.0, 2.0, 3.0]}
                assert session.run(result, feed).tolist() == [factor, 2 * factor, 3 * factor]
            assert session.run(visits).tolist() == [1, 2]


@pytest.mark.parametrize("rounds", [0, 1, 25])
def test_a_loops_body_runs_on_another_task(
    cluster: TensorFlowCluster, control_flow: str, rounds: int
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            step_size = tf.identity(tf1.placeholder(tf.float32, [], name="step_size"))

        def body(i: Any, total: Any) -> Any:
            with tf.device(PS):
                total = total + step_size
            with tf.device(W1):
                total = total * 1.0
            with tf.device(W0):
                return i + 1, total

        with tf.device(W0):
            limit = tf1.placeholder(tf.int32, [], name="limit")
            result = tf1.while_loop(lambda i, _: i < limit, body, [tf.constant(0), tf.zeros([4])])
        with cluster.session(graph) as session:
            for size in (1.0, 0.5):
                count, total = session.run(result, {"limit:0": rounds, "step_size:0": size})
                assert (count, total.tolist()) == (rounds, [rounds * size] * 4)


def test_a_loop_inside_a_loop_crosses_tasks(cluster: TensorFlowCluster, control_flow: str) -> None:
    def build() -> Any:
        def outer(i: Any, total: Any) -> Any:
            def inner(j: Any, total: Any) -> Any:
                with tf.device(PS):
                    return j + 1, total + i * j

            with tf.device(W1):
                _, total = tf1.while_loop(lambda j, _: j < 4, inner, [tf.constant(0), total])
                return i + 1, total

        with tf.device(W0):
            return tf1.while_loop(lambda i, _: i < 5, outer, [tf.constant(0), tf.constant(0)])[1]

    assert cluster.run(build) == sum(i * j for i in range(5) for j in range(4))


def test_a_gradient_flows_back_through_a_loop_on_another_task(
    cluster: TensorFlowCluster, control_flow: str
) -> None:
    def build() -> Any:
        with tf.device(PS):
            x = tf1.placeholder(tf.float64, [], name="x")

        def body(i: Any, y: Any) -> Any:
            with tf.device(W1):
                return i + 1, y * x

        with tf.device(W0):
            _, y = tf1.while_loop(
                lambda i, _: i < 6, body, [tf.constant(0), tf.constant(1.0, tf.float64)]
            )
        return [y, tf1.gradients(y, x)[0]]

    assert cluster.run(build, {"x": 1.5}) == [1.5**6, pytest.approx(6 * 1.5**5, rel=1e-15)]


def test_a_control_edge_orders_operations_of_different_tasks(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            on_ps = tf1.get_variable("a", [], tf.int64, initializer=tf1.zeros_initializer())
        with tf.device(W1):
            on_worker = tf1.get_variable("b", [], tf.int64, initializer=tf1.zeros_initializer())
        with tf.device(PS):
            first = on_ps.assign_add(1, read_value=False)
        with tf.control_dependencies([first]), tf.device(W1):
            second = on_worker.assign_add(10, read_value=False)
        with tf.control_dependencies([second]), tf.device(PS):
            third = on_ps.assign(on_ps.read_value() * 3, read_value=False)
        with tf.control_dependencies([third]), tf.device(W0):
            done = tf.constant(7)
        with cluster.session(graph) as session:
            session.run([on_ps.initializer, on_worker.initializer])
            value = 0
            for step in range(20):
                assert session.run(done) == 7
                value = (value + 1) * 3
                assert session.run([on_ps, on_worker]) == [value, 10 * (step + 1)]


def test_a_step_that_sends_nothing_but_control_edges_ends(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        nodes: list[Any] = []
        for i in range(60):
            with tf.device([PS, W0, W1][i % 3]), tf.control_dependencies(nodes[-1:]):
                nodes.append(tf.no_op(name=f"node_{i}"))
        with cluster.session(graph) as session:
            for _ in range(5):
                assert session.run(nodes[-1]) is None


def test_a_function_with_parts_on_two_tasks(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            weights = tf1.get_variable(
                "weights", [3], tf.float32, initializer=tf1.ones_initializer(), use_resource=True
            )

        @tf.function
        def layer(x: Any) -> Any:
            with tf.device(PS):
                scaled = x * weights
            with tf.device(W1):
                return tf.reduce_sum(scaled)

        with tf.device(W0):
            x = tf1.placeholder(tf.float32, [3], name="x")
            result = layer(x)
        with cluster.session(graph, share_cluster_devices_in_session=True) as session:
            session.run(weights.initializer)
            assert session.run(result, {x: [1.0, 2.0, 4.0]}) == 7.0
