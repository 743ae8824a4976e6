"""Tables of tensorflow-recommenders-addons (TFRA), which grow with the ids that occur."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding

import tensorwire.tf  # noqa: F401 - fields of ConfigProto
from integration.semantics.support import PROTOCOLS, STEP_TIMEOUT_MS, TensorFlowCluster, tf1
from tensorwire.placement.graphs import model_of
from tensorwire.placement.plan import balanced
from tensorwire.placement.traffic import Traffic

TABLES, DIM, BATCH = 6, 8, 64
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.05),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01),
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
}


@pytest.fixture(scope="module")
def clusters(plugin: None) -> Iterator[dict[str, TensorFlowCluster]]:
    imports = ["tensorflow_recommenders_addons"]
    grpc, wire = (
        TensorFlowCluster(protocol, {"ps": 2, "worker": 1}, plugin=True, imports=imports)
        for protocol in PROTOCOLS
    )
    with grpc, wire:
        grpc.start_all()
        wire.start_all()
        yield {"grpc": grpc, "grpc++": wire}


class Model:
    """Some tables, each on both ps, and a loss over the rows of a batch of ids."""

    def __init__(self, optimizer: str, update_by_adding: bool = False, policy: Any = None) -> None:
        with tf.Graph().as_default() as self.graph, tf1.device("/job:worker/task:0"):
            self.ids = tf1.placeholder(tf.int64, [None, TABLES])
            with tf1.device("/job:ps/task:0"):
                self.step = tf1.train.get_or_create_global_step()
            self.tables = [
                dynamic_embedding.get_variable(
                    f"table{number}",
                    dim=DIM,
                    initializer=tf1.constant_initializer(0.1 * number),
                    devices=[f"/job:ps/task:{index}/device:CPU:0" for index in range(2)],
                    bp_v2=update_by_adding,
                    restrict_policy=policy,
                )
                for number in range(TABLES)
            ]
            looked_up = [
                dynamic_embedding.embedding_lookup_unique(
                    table, self.ids[:, number], name=f"look_up{number}", return_trainable=True
                )
                for number, table in enumerate(self.tables)
            ]
            self.rows = tf.concat([rows for rows, _ in looked_up], axis=1)
            weights = tf.constant(np.linspace(-1, 1, TABLES * DIM), tf.float32)
            self.loss = tf.reduce_mean(tf.square(tf.linalg.matvec(self.rows, weights) - 1.0))
            grows = dynamic_embedding.DynamicEmbeddingOptimizer(OPTIMIZERS[optimizer]())
            trainable = [each for _, each in looked_up]
            self.train = grows.minimize(self.loss, self.step, var_list=trainable)
            self.sizes = [table.size() for table in self.tables]
            self.restrict = []
            if policy is not None:
                self.restrict = [table.restrict(20, trigger=20) for table in self.tables]
            self.initialize = tf1.global_variables_initializer()
            self.saver = tf1.train.Saver()

    def session(self, cluster: TensorFlowCluster, **rewrites: bool) -> Any:
        """A session on a cluster that has no tables yet."""
        tf1.Session.reset(cluster.target())
        config = tf1.ConfigProto(operation_timeout_in_ms=STEP_TIMEOUT_MS, **rewrites)
        return tf1.Session(cluster.target(), self.graph, config)


def batches(count: int, seed: int = 1) -> list[Any]:
    """Ids as they occur: few often, many once."""
    random = np.random.default_rng(seed)
    return [random.zipf(1.2, [BATCH, TABLES]) % 2**40 for _ in range(count)]


def trained(
    cluster: TensorFlowCluster, model: Model, steps: int, **rewrites: bool
) -> tuple[list[float], list[int], Any]:
    """The losses of some steps from new tables on, their sizes then, and rows."""
    with model.session(cluster, **rewrites) as session:
        session.run(model.initialize)
        losses = [
            float(session.run([model.loss, model.train], {model.ids: ids})[0])
            for ids in batches(steps)
        ]
        rows = session.run(model.rows, {model.ids: batches(1)[0]})
        return losses, session.run(model.sizes), rows


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_training_is_that_of_grpc_bit_by_bit(
    clusters: dict[str, TensorFlowCluster], optimizer: str
) -> None:
    expected = trained(clusters["grpc"], Model(optimizer), 6)
    variants: list[dict[str, bool]] = [{}, {"tensor_fuse": True}, {"exact_rewrites": True}]
    for rewrites in variants:
        losses, sizes, rows = trained(clusters["grpc++"], Model(optimizer), 6, **rewrites)
        assert (losses, sizes) == expected[:2], rewrites
        assert rows.tobytes() == expected[2].tobytes(), rewrites
    assert expected[0][-1] < expected[0][0]


def sent_by(cluster: TensorFlowCluster, do: Callable[[], Any]) -> int:
    """Messages with tensors from one task to another while `do` runs."""

    def so_far() -> int:
        counts = [cluster.stats(task) for task in cluster.tasks]
        return sum(each["served_tensors"] + each["pushed_tensors"] for each in counts)

    before = so_far()
    do()
    return so_far() - before


def test_what_all_tables_send_to_a_task_is_one_message(
    clusters: dict[str, TensorFlowCluster],
) -> None:
    cluster, model = clusters["grpc++"], Model("adagrad")
    sent = []
    variants: list[dict[str, bool]] = [{}, {"exact_rewrites": True}]
    for rewrites in variants:
        with model.session(cluster, **rewrites) as session:
            session.run(model.initialize)
            feed = {model.ids: batches(1)[0]}
            for _ in range(3):
                session.run(model.train, feed)
            sent.append(sent_by(cluster, functools.partial(session.run, model.train, feed)))
    assert sent[1] <= sent[0] / TABLES, sent


def test_a_checkpoint_has_the_tables_and_their_slots(
    clusters: dict[str, TensorFlowCluster], tmp_path: Path
) -> None:
    cluster, model = clusters["grpc++"], Model("adam")
    first, second = batches(3), batches(3, seed=2)
    after = []
    with model.session(cluster, exact_rewrites=True) as session:
        session.run(model.initialize)
        for ids in first:
            session.run(model.train, {model.ids: ids})
        file = model.saver.save(session, str(tmp_path / "model"))
        sizes = session.run(model.sizes)
        after.append([session.run([model.loss, model.train], {model.ids: i})[0] for i in second])
    with model.session(cluster, exact_rewrites=True) as session:
        model.saver.restore(session, file)
        assert session.run(model.sizes) == sizes
        after.append([session.run([model.loss, model.train], {model.ids: i})[0] for i in second])
    assert after[0] == after[1]


def test_a_table_grows_over_a_million_ids(clusters: dict[str, TensorFlowCluster]) -> None:
    cluster, model = clusters["grpc++"], Model("sgd")
    with model.session(cluster, exact_rewrites=True) as session:
        session.run(model.initialize)
        for begin in range(0, 1_200_000, 100_000):
            ids = np.arange(begin, begin + 100_000, dtype=np.int64) * 1_000_003
            session.run(model.train, {model.ids: np.stack([ids] * TABLES, axis=1)})
        assert session.run(model.sizes) == [1_200_000] * TABLES


@pytest.mark.parametrize("policy", ["TimestampRestrictPolicy", "FrequencyRestrictPolicy"])
def test_a_policy_keeps_tables_small(clusters: dict[str, TensorFlowCluster], policy: str) -> None:
    cluster = clusters["grpc++"]
    model = Model("adagrad", policy=getattr(dynamic_embedding, policy))
    with model.session(cluster, exact_rewrites=True) as session:
        session.run(model.initialize)
        for ids in batches(4):
            session.run(model.train, {model.ids: ids})
        assert min(session.run(model.sizes)) > 20
        session.run(model.restrict)
        assert max(session.run(model.sizes)) <= 20


def test_tools_know_where_tables_are_what_they_move_and_how_large_they_are(
    clusters: dict[str, TensorFlowCluster],
) -> None:
    cluster, model = clusters["grpc++"], Model("adagrad")
    known = model_of(model.graph)
    on = {each.name: each.ps for each in known.variables if each.ps is not None}
    rows = {f"table{number}/table{number}_mht_1of2" for number in range(TABLES)}
    assert rows < set(on)
    assert len(on) == 2 * 2 * TABLES  # rows and slots, each on both ps
    traffic = Traffic.predicted(known.crossings, BATCH)
    assert traffic is not None
    assert all(traffic.bytes_per_step[name] >= BATCH * DIM * 4 for name in on)
    plan = balanced(known.variables, 2, traffic)
    assert {name: plan.tasks[name] for name in on} == {name: (ps,) for name, ps in on.items()}

    with model.session(cluster) as session:
        session.run(model.initialize)
        for ids in batches(3):
            session.run(model.train, {model.ids: ids})
        sizes = session.run(model.sizes)
        told: dict[str, int] = {}
        for ps in range(2):
            stats: Any = cluster.stats(f"ps:{ps}")
            for table in stats["tables"]:
                assert table["row_bytes"] == 8 + DIM * 4
                assert on[table["name"]] == ps
                told[table["name"]] = table["rows"]
        for number, size in enumerate(sizes):
            parts = [told[f"table{number}/table{number}_mht_{part}of2"] for part in (1, 2)]
            assert sum(parts) == size
        stats = cluster.stats("worker:0")
    tensors = {each["name"] for each in stats["variables"] if each["tensor"]}
    assert set(on) <= tensors


def test_workers_add_what_they_change(clusters: dict[str, TensorFlowCluster]) -> None:
    """With bp_v2, where workers do not overwrite each other's updates."""
    results = [
        trained(clusters[protocol], Model("adagrad", update_by_adding=True), 4)[0]
        for protocol in PROTOCOLS
    ]
    assert results[0] == results[1]


def test_the_benchmark_trains_on_tables_that_grow(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [sys.executable, "-m", "tensorwire.cli.main", "bench", "train", "--model", "din"]
    command += ["--tables", "tfra", "--ps", "1", "--workers", "1"]
    command += ["--steps", "40", "--rounds", "3", "--json", str(record)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    results = json.loads(record.read_text())["results"]
    assert [each["protocol"] for each in results] == ["grpc", "grpc++"]
    assert all(each["steps_per_s"] > 0 and 0.3 < each["auc"] < 1 for each in results)
