"""Rewrites that send less: bitwise identical results, the same errors, fewer rows."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorwire.tf import ConfigProto

from .fusing import STEP_TIMEOUT_MS, total
from .support import TensorFlowCluster, outcome, results_of, session_config, tf1

pytestmark = [pytest.mark.core, pytest.mark.timeout(240, method="thread", func_only=True)]

PS = "/job:ps/task:0"
W0 = "/job:worker/task:0"
W1 = "/job:worker/task:1"

SWITCHES: tuple[dict[str, bool], ...] = (
    {"unique_pull": True},
    {"summed_push": True},
    {"bundles": True},
    {"exact_rewrites": True},
)


@dataclass
class Model:
    """A graph, and its fetches and feeds."""

    graph: tf.Graph
    fetches: Any = ()
    feeds: Sequence[Mapping[Any, Any]] = ({},)
    """The feeds of each step."""
    at_the_end: Any = field(default_factory=list)
    """Fetched after the last step."""


@contextlib.contextmanager
def session(
    cluster: TensorFlowCluster, graph: tf.Graph, switches: Mapping[str, bool], optimized: bool
) -> Iterator[Any]:
    config = ConfigProto(**switches)
    if optimized:  # by TensorFlow itself, as by default
        config.operation_timeout_in_ms = STEP_TIMEOUT_MS
    else:
        config.MergeFrom(session_config(STEP_TIMEOUT_MS))
    with tf1.Session(cluster.target(), graph, config) as made:
        yield made


def results(
    cluster: TensorFlowCluster, model: Model, switches: Mapping[str, bool], optimized: bool = False
) -> list[Any]:
    with model.graph.as_default():
        initializer = tf1.global_variables_initializer()
    with session(cluster, model.graph, switches, optimized) as made:
        made.run(initializer)
        found = [
            outcome(lambda feed=feed: in_bytes(made.run(model.fetches, feed)))
            for feed in model.feeds
        ]
        found.append(outcome(lambda: in_bytes(made.run(model.at_the_end))))
        return [(kind, words(value) if kind != "value" else value) for kind, value in found]


def words(message: str) -> list[str]:
    """The message of a kernel, without the random parts: the task that reported it first, stacks,
    and earlier warnings.
    """
    now = message.partition("Recent warning and error logs:")[0]
    said = re.findall(r"^(?:.*: )?(\w+\[.*\] = .*)$", now, re.MULTILINE)
    return list(dict.fromkeys(said)) or [message]


def in_bytes(values: Any) -> list[Any]:
    """The values as bytes, for a bitwise comparison: equal numbers may have different bits."""
    flat = tf.nest.flatten(values)
    return [
        (np.asarray(v).shape, np.asarray(v).dtype.name, np.asarray(v).tobytes())
        for v in flat
        if v is not None
    ]


def places(cluster: TensorFlowCluster, rewrite: str) -> dict[str, int]:
    """By the master: how often a rewrite was applied, and why it was not."""
    listed: Any = cluster.stats("worker:0")["rewrites"]
    return {each["outcome"]: each["places"] for each in listed if each["rewrite"] == rewrite}


@contextlib.contextmanager
def counted(cluster: TensorFlowCluster, rewrite: str) -> Iterator[dict[str, int]]:
    """Yields a dict that is filled at the end with the increase of `places`."""
    before = places(cluster, rewrite)
    more: dict[str, int] = {}
    yield more
    for what, count in places(cluster, rewrite).items():
        if count > before.get(what, 0):
            more[what] = count - before.get(what, 0)


def table(name: str, shape: Sequence[int], use_resource: bool = True) -> Any:
    values = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    return tf1.get_variable(name, initializer=values, use_resource=use_resource)


def expect_the_same(
    cluster: TensorFlowCluster,
    build: Callable[[], tuple[Any, Sequence[Mapping[Any, Any]], Any]],
    rewrites: Mapping[str, int],
    optimized: Sequence[bool] = (False, True),
) -> list[Any]:
    """Checks that results with each rewrite equal those without. `rewrites`: expected counts."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(3)
        model = Model(graph, *build())
    stock: list[Any] = []
    for by_tensorflow in optimized:
        stock = results(cluster, model, {}, by_tensorflow)
        for switches in SWITCHES:
            with contextlib.ExitStack() as counting:
                more = {
                    name: counting.enter_context(counted(cluster, name))
                    for name in ("unique_pull", "summed_push")
                }
                found = results(cluster, model, switches, by_tensorflow)
            assert found == stock, (switches, by_tensorflow)
            for name, times in rewrites.items():
                if name in switches or "exact_rewrites" in switches:
                    assert more[name].get("applied", 0) >= times, (more, switches, by_tensorflow)
                else:
                    assert more[name] == {}
    return stock


def test_ids_that_repeat_are_sent_once_and_rows_come_back_once(
    fusing_cluster: TensorFlowCluster,
) -> None:
    ids = np.random.default_rng(1).choice([3, 5, 8, 90, 91, 17, 0], 1000)
    with tf.Graph().as_default() as graph:
        fed = tf1.placeholder(tf.int64, [None])
        with tf.device(PS):
            weights = table("pulled_once", [100, 6])
        with tf.device(W0):
            sent = tf.identity(fed)
            rows = tf.nn.embedding_lookup(weights, sent) * 2.0
        with session(fusing_cluster, graph, {"unique_pull": True}, False) as made:
            made.run(weights.initializer)
            before = [total(fusing_cluster, name) for name in ("looked_up_ids", "unique_ids")]
            for _ in range(3):
                found = made.run(rows, {fed: ids})
            after = [total(fusing_cluster, name) for name in ("looked_up_ids", "unique_ids")]
            expected = made.run(weights)[ids] * 2.0
    assert np.subtract(after, before).tolist() == [3000, 21]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64], ids=["int32", "int64"])
def test_ids_of_any_shape_give_the_rows_that_they_gave(
    fusing_cluster: TensorFlowCluster, use_resource: bool, dtype: tf.DType
) -> None:
    draw = np.random.default_rng(2)
    shapes: list[list[int]] = [[], [0], [1], [50], [4, 9], [0, 3], [3, 0], [2, 3, 4]]
    row_shapes: list[list[int]] = [[], [5], [2, 3]]

    def build() -> Any:
        fetches, feed = [], {}
        for n, shape in enumerate(shapes):
            for row_shape in row_shapes:
                ids, values = fed_ids(draw.integers(0, 12, shape), dtype)
                feed[ids] = values
                name = f"any_{use_resource}_{n}_{len(row_shape)}"
                rows = looked_up(name, [12, *row_shape], ids, use_resource)
                with tf.device(W0):
                    fetches.append(rows + 0.5)
        return fetches, [feed, feed], []

    expect_the_same(fusing_cluster, build, {"unique_pull": len(shapes) * len(row_shapes)})


def fed_ids(values: Any, dtype: tf.DType = tf.int64) -> tuple[Any, Any]:
    """A placeholder on the worker for ids of any shape, and its feed."""
    with tf.device(W0):
        return tf1.placeholder(dtype, [None] * np.ndim(values)), values


def looked_up(name: str, shape: Sequence[int], ids: Any, use_resource: bool = True) -> Any:
    """Rows of a new table; the lookup runs on the table's device, as with embedding_lookup."""
    with tf.device(PS):
        return tf.gather(table(name, shape, use_resource), ids)


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
def test_an_id_out_of_range_is_named_as_ever(
    fusing_cluster: TensorFlowCluster, use_resource: bool
) -> None:
    bad = [[5, 5, 5, 12], [5, 5, -1], [12], [[1, 1], [1, 99]]]
    for n, values in enumerate(bad):

        def build(n: int = n, values: Any = values) -> Any:
            ids, _ = fed_ids(values)
            rows = looked_up(f"range_{use_resource}_{n}", [12, 3], ids, use_resource)
            with tf.device(W0):
                result = tf.reduce_sum(rows)
            good = np.zeros_like(values)
            return result, [{ids: good}, {ids: values}, {ids: good}], []

        good, error, after, _ = expect_the_same(fusing_cluster, build, {"unique_pull": 1})
        assert good == after
        assert error[0] == "InvalidArgumentError"
        assert any("is not in [0, 12)" in line for line in error[1])


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_partitioned_tables(fusing_cluster: TensorFlowCluster, strategy: str) -> None:
    draw = np.random.default_rng(4)

    def build() -> Any:
        ids, _ = fed_ids([[0]])
        with tf.device(PS):
            weights = tf1.get_variable(
                f"partitioned_{strategy}",
                [40, 3],
                initializer=tf1.random_normal_initializer(seed=7),
                partitioner=tf1.fixed_size_partitioner(3),
            )
        with tf.device(W0):
            rows = tf1.nn.embedding_lookup(list(weights), ids, partition_strategy=strategy) + 0.5
        feeds = [{ids: draw.integers(0, 40, [6, 5])} for _ in range(3)]
        return rows, [*feeds, {ids: np.zeros([0, 5], np.int64)}], []

    expect_the_same(fusing_cluster, build, {"unique_pull": 3})


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("lookup", ["embedding_lookup_sparse", "safe_embedding_lookup_sparse"])
def test_sparse_lookups(fusing_cluster: TensorFlowCluster, combiner: str, lookup: str) -> None:
    def build() -> Any:
        with tf.device(PS):
            weights = table(f"{lookup}_{combiner}", [30, 4])
        with tf.device(W0):
            where = tf1.placeholder(tf.int64, [None, 2])
            values = tf1.placeholder(tf.int64, [None])
            each_counts = tf1.placeholder(tf.float32, [None])
            ids = tf.SparseTensor(where, values, [6, 4])
            counts = tf.SparseTensor(where, each_counts, [6, 4])
            both = [
                getattr(tf1.nn, lookup)(weights, ids, sparse_weights, combiner=combiner)
                for sparse_weights in (None, counts)
            ]
            optimizer = tf1.train.AdagradOptimizer(0.1)
            train = optimizer.minimize(tf.reduce_sum(both[0] * both[1]))
        rows = [[0, 0], [0, 1], [0, 2], [2, 0], [2, 3], [3, 0], [4, 1], [5, 0]]
        feed = {
            where: rows,
            values: [3, 3, 7, 7, 29, 3, 0, 3],
            each_counts: [0.5, 2.0, 1.0, 1.5, 0.1, 3.0, 1.0, 0.7],
        }
        return [both, train], [feed] * 3, [weights]

    expect_the_same(fusing_cluster, build, {"summed_push": 1})


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf1.train.AdamOptimizer(0.1),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.1),
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
}


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_leaves_the_same_variables(
    fusing_cluster: TensorFlowCluster, name: str, use_resource: bool
) -> None:
    draw = np.random.default_rng(5)

    def build() -> Any:
        ids, _ = fed_ids([0])
        more, _ = fed_ids([[0]])
        rows = looked_up(f"{name}_{use_resource}", [50, 4], ids, use_resource)
        with tf1.variable_scope("", reuse=True):
            again = looked_up(f"{name}_{use_resource}", [50, 4], more, use_resource)
        other = looked_up(f"other_{name}_{use_resource}", [50, 2], ids, use_resource)
        with tf.device(W0):
            loss = tf.reduce_sum(tf.sin(rows)) + tf.reduce_sum(again**3) + tf.reduce_sum(other**2)
        with tf1.device(tf1.train.replica_device_setter(1, worker_device=W0)):
            train = OPTIMIZERS[name]().minimize(loss)
        feeds = [
            {ids: draw.zipf(1.3, n) % 50, more: draw.zipf(1.3, [3, m]) % 50}
            for n, m in [(100, 9), (1, 1), (0, 4), (64, 0), (300, 50)]
        ]
        return [loss, train], feeds, tf1.global_variables()

    expect_the_same(
        fusing_cluster,
        build,
        # SGD adds each value to its row.
        {"unique_pull": 3, "summed_push": 0 if name == "sgd" else 2},
    )


def test_control_dependencies_order_reads_and_writes_as_before(
    fusing_cluster: TensorFlowCluster,
) -> None:
    def build() -> Any:
        ids, values = fed_ids([4, 4, 1, 4])
        with tf.device(PS):
            weights = table("ordered", [8, 3])
            before = tf.gather(weights, ids)
        with tf.device(W0):
            before = before + 0.0
        with tf.control_dependencies([before]), tf.device(PS):
            double = weights.assign(weights * 2.0)
        with tf.control_dependencies([double]), tf.device(PS):
            between = tf.gather(weights, ids)
        with tf.device(W0):
            between = between + 0.0
        with tf.control_dependencies([between, double]), tf.device(PS):
            unique, numbers = tf.unique(ids)
            added = tf.math.unsorted_segment_sum(between, numbers, tf.shape(unique)[0])
            double = weights.scatter_add(tf.IndexedSlices(added, unique))
        with tf.control_dependencies([double]), tf.device(PS):
            after = tf.gather(weights, ids)
        with tf.device(W0):
            after = after + 0.0
        return [before, between, after], [{ids: values}] * 3, [weights]

    with counted(fusing_cluster, "summed_push") as pushes:
        expect_the_same(fusing_cluster, build, {"unique_pull": 3}, optimized=[False])
    # The sum waits for an operation on the ps.
    assert "applied" not in pushes
    assert pushes


def test_constants_that_wait_for_something_are_taken_into_a_bundle(
    fusing_cluster: TensorFlowCluster,
) -> None:
    def build() -> Any:
        ids, values = fed_ids([4, 4, 1, 4, 0])
        rows = [looked_up(f"before_slices_{number}", [8, 3], ids) for number in range(5)]
        with tf.device(W0), tf.control_dependencies([ids]):
            slices = [each[1:4, ::2] for each in rows]  # their bounds also wait for the ids
        return slices, [{ids: values}] * 2, []

    with counted(fusing_cluster, "bundles") as bundles:
        expect_the_same(fusing_cluster, build, {"unique_pull": 5}, optimized=[False])
    assert bundles["applied"] >= 2


def test_lookups_that_would_gain_nothing_stay(fusing_cluster: TensorFlowCluster) -> None:
    def build() -> Any:
        ids, values = fed_ids([4, 4, 1, 4])
        with tf.device(W0):
            unique = tf.unique(ids)[0]
        here = looked_up("wanted_on_the_ps", [8, 3], ids)
        with tf.device(PS):
            there = tf.reduce_sum(here)
            columns = tf.gather(table("columns", [3, 8]), ids, axis=1)
        once = looked_up("unique_already", [8, 3], unique)
        with tf.device(W1):
            elsewhere = looked_up("wanted_elsewhere", [8, 3], ids) + 0.0
        with tf.device(W0):
            fetches = [here + 0.0, there, columns + 0.0, once + 0.0, elsewhere]
        return fetches, [{ids: values}], []

    with counted(fusing_cluster, "unique_pull") as pulls:
        expect_the_same(fusing_cluster, build, {}, optimized=[False])
    assert "applied" not in pulls
    for reason in (
        "rows are wanted elsewhere, too",
        "not whole rows of the first dimension",
        "the ids are unique already",
    ):
        assert reason in pulls


def test_branches_and_loops(fusing_cluster: TensorFlowCluster, control_flow: str) -> None:
    def build() -> Any:
        ids, values = fed_ids([4, 4, 1, 4])
        with tf.device(PS):
            weights = table(f"flow_{control_flow}", [8, 3])
        with tf.device(W0):
            taken = tf1.placeholder(tf.bool, [])

            def lookup(which: Any) -> Any:
                with tf.device(PS):
                    rows = tf.gather(weights, which)
                return tf.reduce_sum(rows + 1.0)

            branch = tf1.cond(taken, lambda: lookup(ids), lambda: lookup(ids[:1]) * 10.0)
            _, looped = tf1.while_loop(
                lambda i, _: i < 5,
                lambda i, so_far: (i + 1, so_far + lookup(tf.math.floormod(ids + i, 8))),
                [tf.constant(0, tf.int64), branch],
            )
        feeds = [{ids: values, taken: i % 2 == 0} for i in range(4)]
        return [branch, looped], feeds, []

    expect_the_same(fusing_cluster, build, {})


def test_each_worker_has_ids_of_its_own(fusing_cluster: TensorFlowCluster) -> None:
    draw = np.random.default_rng(6)

    def build() -> Any:
        with tf.device(PS):
            weights = table("shared_by_workers", [20, 3])
        losses, feed = [], {}
        for worker in (W0, W1):
            ids = tf1.placeholder(tf.int64, [None])
            with tf.device(worker):
                here = tf.identity(ids)
            with tf.device(PS):
                rows = tf.gather(weights, here)
            with tf.device(worker):
                losses.append(tf.reduce_sum(tf.sin(rows)))
            feed[ids] = draw.integers(0, 20, 70)
        with tf1.device(tf1.train.replica_device_setter(1, worker_device=W1)):
            optimizer = tf1.train.AdagradOptimizer(0.1)
            # With both variables, so that the update waits for both lookups.
            train = optimizer.minimize(
                tf.add_n(losses), var_list=[weights], colocate_gradients_with_ops=True
            )
        return [*losses, train], [feed] * 3, [weights]

    # TensorFlow's own rewrites compute parts of one worker's gradient on the other worker.
    expect_the_same(fusing_cluster, build, {"unique_pull": 2}, optimized=[False])


def random_training(seed: int) -> Callable[[], Any]:
    """Tables of random sizes and lookups of random kinds, some of them repeated in one graph."""

    def build() -> Any:
        draw = np.random.default_rng(seed)
        losses, feeds = [], [{} for _ in range(4)]
        batches = []
        for _ in range(draw.integers(1, 4)):
            rank = int(draw.integers(1, 3))
            dtype = [tf.int32, tf.int64][draw.integers(2)]
            batches.append(fed_ids(np.zeros([1] * rank), dtype)[0])
        for batch in batches:
            for feed in feeds:
                shape = draw.integers(0, 30, batch.shape.rank)
                feed[batch] = draw.zipf(1.2, shape) % 25
        for n in range(draw.integers(1, 6)):
            rows, width = int(draw.integers(25, 40)), int(draw.integers(1, 9))
            batch = batches[draw.integers(len(batches))]
            with tf1.device(tf1.train.replica_device_setter(1, worker_device=W0)):
                weights = table(f"random{seed}_{n}", [rows, width], bool(draw.integers(2)))
                for _ in range(draw.integers(1, 3)):
                    found = tf1.nn.embedding_lookup(weights, batch)
                    losses.append(tf.reduce_sum([tf.sin, tf.square][draw.integers(2)](found)))
        with tf1.device(tf1.train.replica_device_setter(1, worker_device=W0)):
            loss = tf.add_n(losses)
            train = list(OPTIMIZERS.values())[draw.integers(len(OPTIMIZERS))]().minimize(loss)
        return [loss, train], feeds, tf1.global_variables()

    return build


@pytest.mark.parametrize("seed", range(6))
def test_random_training(fusing_cluster: TensorFlowCluster, seed: int) -> None:
    expect_the_same(fusing_cluster, random_training(seed), {"unique_pull": 1})


@pytest.mark.parametrize("optimizer", ["adagrad", "momentum"])
@pytest.mark.parametrize(
    "fed",
    [
        [3, 11, 9],
        [[3, 3, 11, 9, 11, 3], [9, 10, 10], [1, 1, 2], [9, 9], []],
        [[[3, 3, 11], [9, 11, 3]], [[9], [10], [10]], [[1, 1, 2]], [[9, 9]], [[9]], [[], []]],
        [[[[3, 9], [11, 3]]], [[[9]], [[10]]], [[[10, 10]]], [[[1, 1, 2]]]],
    ],
    ids=["scalars", "vectors", "matrices", "three-dimensions"],
)
def test_a_variable_that_has_grown_is_trained_as_before(
    fusing_cluster: TensorFlowCluster, fed: list[Any], optimizer: str
) -> None:
    """The graph declares fewer rows than there are."""
    found = []
    for switches in ({}, {"unique_pull": True, "summed_push": True}, {"exact_rewrites": True}):
        with tf.Graph().as_default() as graph:
            ids, _ = fed_ids(fed[0])
            rows = looked_up(f"grown_{optimizer}_{np.ndim(fed[0])}", [8, 3], ids)
            with tf.device(W0):
                loss = tf.reduce_sum(tf.sin(rows))
            with tf1.device(tf1.train.replica_device_setter(1, worker_device=W0)):
                train = OPTIMIZERS[optimizer]().minimize(loss)
            more = tf1.placeholder(tf.float32)
            grow = [
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=more)
                for variable in tf1.global_variables()
            ]
            all_rows = [
                tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
                for variable in tf1.global_variables()
            ]
            with session(fusing_cluster, graph, switches, False) as made:
                made.run(grow, {more: np.linspace(0.5, 1.0, 36, dtype=np.float32).reshape(12, 3)})
                losses = [made.run([loss, train], {ids: values})[0] for values in fed]
                found.append(in_bytes([losses, made.run(all_rows)]))
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_what_a_session_chooses_wins_over_the_environment(plugin: None) -> None:
    choices: dict[bool, list[dict[str, bool]]] = {
        True: [{}, {"bundles": False}, {"exact_rewrites": False, "tensor_fuse": True}],
        False: [
            {"tensor_fuse": False},
            {"exact_rewrites": False},
            {"exact_rewrites": True, "tensor_fuse": False},
        ],
    }
    env = {"TENSORWIRE_REWRITES": "unique_pull, tensor_fuse"}
    with TensorFlowCluster("grpc", {"ps": 1, "worker": 1}, plugin=True) as cluster:
        cluster.ready(*(cluster.begin(job, 0, env) for job in ("ps", "worker")))
        with tf.Graph().as_default() as graph:
            with tf.device(PS):
                sent = [tf.random.uniform([2]) for _ in range(2)]
            with tf.device(W0):
                taken = [value * 2.0 for value in sent]
        for is_fused, of_session in choices.items():
            for switches in of_session:
                with (
                    counted(cluster, "tensor_fuse") as more,
                    session(cluster, graph, switches, optimized=False) as made,
                ):
                    made.run(taken)
                assert ("applied" in more) == is_fused, switches


def test_functions_are_rewritten_too(
    fusing_cluster: TensorFlowCluster, client_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "spec": {**fusing_cluster.spec, "client": [client_address]},
        "protocol": fusing_cluster.protocol,
    }
    script = Path(__file__).with_name("lookup_script.py")
    found = {}
    for asked_for in ("", "exact"):
        monkeypatch.setenv("TENSORWIRE_REWRITES", asked_for)
        before = total(fusing_cluster, "looked_up_ids")
        found[asked_for] = results_of([sys.executable, str(script), json.dumps(arguments)])
        looked_up_ids = total(fusing_cluster, "looked_up_ids") - before
        assert (looked_up_ids > 0) == (asked_for == "exact")
    assert found["exact"]["values"] == found[""]["values"]
    assert not found[""]["rewrites"]
    applied = {
        each["rewrite"] for each in found["exact"]["rewrites"] if each["outcome"] == "applied"
    }
    assert applied == {"unique_pull", "summed_push"}
