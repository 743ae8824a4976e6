"""Placement in TensorFlow: TF1's device setter, TF2's strategy, unchanged scripts."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwire.bench.lab import LocalCluster
from tensorwire.errors import UsageError
from tensorwire.placement.traffic import Traffic

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.timeout(600, method="thread")

tf1 = tf.compat.v1
VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
EXAMPLES = Path(__file__).parents[2] / "examples"
TENSORWIRE = [sys.executable, "-m", "tensorwire.cli.main"]
PS = 5
WORDS = [0, 1, 399, 400, 1999, 7]
BY_BYTES = Traffic({})
"""No traffic, so that only stored bytes are balanced."""


@pytest.fixture(scope="module")
def placement() -> Any:
    """The module, imported here so that the plug-in is compiled before scripts with timeouts."""
    import tensorwire.tf.placement

    return tensorwire.tf.placement


def model() -> tuple[Any, Any]:
    """Rows of an embedding for `WORDS`, looked up as in scripts, and a step that changes it."""
    with tf1.variable_scope("model"):
        table = tf1.get_variable("table", [2000, 8])
        kernel = tf1.get_variable("kernel", [8, 4])
    with tf.name_scope("elsewhere"):
        rows = tf1.nn.embedding_lookup(table, WORDS)
        ids = tf.sparse.from_dense([[1, 400], [1999, 3]])
        bags = tf1.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
        loss = tf.reduce_sum(tf.matmul(tf.concat([rows, bags], 0), kernel))
    train = tf1.train.AdagradOptimizer(0.1).minimize(
        loss, global_step=tf1.train.get_or_create_global_step()
    )
    return tf.concat([rows, bags], 0), train


def devices(graph: Any) -> dict[str, str]:
    return {n.name: n.device for n in graph.as_graph_def().node if n.op == "VarHandleOp"}


@pytest.fixture
def graph_mode() -> Any:
    """Graph mode of TF1 within a test; the process itself stays in TF2 mode."""
    resource = tf1.resource_variables_enabled()
    tf1.enable_resource_variables()
    with tf.Graph().as_default() as graph:
        yield graph
    if not resource:
        tf1.disable_resource_variables()


def test_greedy_gives_each_variable_to_the_ps_with_the_fewest_bytes(
    placement: Any, graph_mode: Any
) -> None:
    strategy = placement.GreedyLoadBalancingStrategy(2, placement.byte_size_load_fn)
    with tf1.device(tf1.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)):
        for name, floats in [("a", 100), ("b", 10), ("c", 20), ("d", 30), ("e", 50)]:
            tf1.get_variable(name, [floats])
        tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    tasks = {name: device[-1] for name, device in devices(graph_mode).items()}
    assert tasks == {"a": "0", "b": "1", "c": "1", "d": "1", "e": "1"}


def test_greedy_takes_any_load(placement: Any, graph_mode: Any) -> None:
    strategy = placement.GreedyLoadBalancingStrategy(2, lambda op: {"a": 1, "b": 5}.get(op.name, 1))
    with tf1.device(tf1.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)):
        for name in "abcd":
            tf1.get_variable(name, [1000])
    tasks = {name: device[-1] for name, device in devices(graph_mode).items()}
    assert tasks == {"a": "0", "b": "1", "c": "0", "d": "0"}


def test_balanced_splits_the_large_and_keeps_slots_beside_their_part(
    placement: Any, graph_mode: Any
) -> None:
    plan = placement.balanced(model, PS, min_part_bytes=1)
    assert plan.bytes_imbalance <= 1.1
    with placement.scope(plan, cluster={"ps": ["h:1"] * PS, "worker": ["h:2"]}):
        model()
    found = devices(graph_mode)
    parts = [f"model/table/part_{index}" for index in range(PS)]
    assert {found[part] for part in parts} == {f"/job:ps/task:{task}" for task in range(PS)}
    assert all(found[part] == found[f"{part}/Adagrad"] for part in parts)
    built = placement.variables(graph_mode)
    held = [0] * PS
    for variable in built:
        held[int(found[variable.name][-1])] += variable.bytes
    assert held == plan.bytes_per_ps


def test_a_split_variable_is_assigned_as_one_and_says_what_it_cannot(
    placement: Any, graph_mode: Any
) -> None:
    plan = placement.balanced(model, PS, BY_BYTES, min_part_bytes=1)
    with placement.splitting(plan), tf1.variable_scope("model"):
        table = tf1.get_variable("table", [2000, 8])
    assert len(list(table)) == PS
    with tf.control_dependencies([table.assign(tf.ones([2000, 8]))]):
        changed = tf1.assign_add(table, tf.ones([2000, 8]))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(changed)
        assert np.all(session.run(tf.convert_to_tensor(table)) == 2)
    assert not hasattr(table, "read_value")
    with pytest.raises(AttributeError, match=r"model/table was split .* --keep-whole model/table"):
        table.read_value()


def test_a_variable_that_is_kept_whole_is_not_split(placement: Any) -> None:
    plan = placement.balanced(model, PS, min_part_bytes=1, keep_whole=["*/table"])
    assert len(plan.tasks["model/table"]) == 1
    with pytest.raises(UsageError, match="no variable is named tabel: there are model/table, mod"):
        placement.balanced(model, PS, keep_whole=["tabel"])


@pytest.mark.parametrize("setter", [None, tf1.train.replica_device_setter(2)])
def test_what_a_step_moves_is_known_for_each_variable(
    placement: Any, graph_mode: Any, setter: Any
) -> None:
    from tensorwire.placement import graphs

    with tf1.device(setter):
        ids = tf.random.uniform([100], 0, 50, tf.int64)
        rows = tf1.nn.embedding_lookup(tf1.get_variable("table", [50, 8]), ids)
        loss = tf.reduce_sum(tf.matmul(rows, tf1.get_variable("kernel", [8, 4])))
        tf1.train.AdagradOptimizer(0.1).minimize(loss)
    traffic = placement.Traffic.predicted(graphs.of_graph(graph_mode))
    learning_rate = 4
    assert traffic.bytes_per_step["kernel"] == 2 * 8 * 4 * 4 + learning_rate
    # The ids are sent twice: for the lookup, and with the gradient.
    assert 0 <= traffic.bytes_per_step["table"] - 2 * 100 * (8 * 4 + 8) <= 32

    # 100 random ids of 50 have 43.4 distinct ones on average.
    once = placement.Traffic.predicted(graphs.of_graph(graph_mode), exact_rewrites=True)
    assert once.bytes_per_step["kernel"] == traffic.bytes_per_step["kernel"]
    assert abs(once.bytes_per_step["table"] - 2 * 43.4 * (8 * 4 + 8)) <= 64

    # Saving and evaluation are not part of a step.
    with tf1.device(setter), tf1.variable_scope("", reuse=True):
        tf1.nn.embedding_lookup(tf1.get_variable("table", [50, 8]), list(range(50)))
    tf1.train.Saver()
    assert placement.Traffic.predicted(graphs.of_graph(graph_mode)) == traffic


def test_a_table_that_grows_counts_what_a_step_moves_for_it() -> None:
    from tensorwire.placement.graphs import model_of

    with tf.Graph().as_default() as graph, tf1.device(tf1.train.replica_device_setter(PS)):
        keys = tf1.placeholder(tf.int64, [64])
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([8]))
        table.insert(keys, table.lookup(keys) + 1.0)
    found = model_of(graph)
    (variable,) = found.variables
    assert (variable.bytes, variable.ps) == (0, None)
    traffic = Traffic.predicted(found.crossings)
    assert traffic is not None
    sent, read, written, default = 64 * 8, 64 * 8 * 4, 64 * 8 * 4, 8 * 4
    assert traffic.bytes_per_step == {variable.name: sent + read + written + default}


@pytest.mark.parametrize("name", [pytest.param("ctr", marks=pytest.mark.newest), "flights"])
def test_balanced_evens_out_what_a_step_moves(placement: Any, tmp_path: Path, name: str) -> None:
    from tensorwire.bench.models import MODELS, examples, training

    model = MODELS[name]
    inputs = np.zeros((16, model.inputs), np.int32)
    data = examples.Examples(inputs, np.zeros(16, np.int32))
    files = examples.write(tmp_path, 1, data, data)

    def build() -> Any:
        record = training.endless(tf, model, files.train[0], 16)
        return training.build(tf, model, record, 16)

    plan = placement.balanced(build, PS)
    assert plan.traffic_imbalance <= 1.15
    assert plan.bytes_imbalance <= 1.15
    by_bytes = placement.balanced(placement.variables(build), PS)
    worse = dataclasses.replace(by_bytes, traffic=plan.traffic)
    assert worse.traffic_imbalance > 1.5


def test_checkpoints_go_from_whole_to_split_variables_and_back(
    placement: Any, tmp_path: Path
) -> None:
    plan = placement.balanced(model, PS, BY_BYTES, min_part_bytes=1)
    assert len(plan.tasks["model/table"]) == PS

    def step(read: str | None, written: str, split: bool) -> tuple[Any, Any]:
        """Rows before and after a step that restores one checkpoint and writes another."""
        with tf.Graph().as_default(), placement.splitting(plan) if split else tf.name_scope(""):
            rows, train = model()
            saver = tf1.train.Saver()
            with tf1.Session() as session:
                if read:
                    saver.restore(session, str(tmp_path / read))
                else:
                    session.run(tf1.global_variables_initializer())
                before = session.run(rows)
                session.run(train)
                saver.save(session, str(tmp_path / written))
                return before, session.run(rows)

    _, first = step(None, "whole", split=False)
    restored, second = step("whole", "split", split=True)
    np.testing.assert_array_equal(restored, first)
    restored, third = step("split", "whole again", split=False)
    np.testing.assert_array_equal(restored, second)
    assert not np.array_equal(second, third)
    names = dict(tf.train.list_variables(str(tmp_path / "split")))
    assert names == dict(tf.train.list_variables(str(tmp_path / "whole")))


def test_variables_are_the_same_from_every_kind_of_graph(
    placement: Any, graph_mode: Any, tmp_path: Path
) -> None:
    expected = placement.variables(model)
    assert [v.name for v in expected] == ["model/table", "model/kernel", "global_step"]
    assert expected[0].slot_bytes == 2000 * 8 * 4
    rows, _ = model()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver().save(session, str(tmp_path / "ckpt"))
        tf1.saved_model.simple_save(session, str(tmp_path / "saved"), {"x": rows}, {"x": rows})
    tf.io.write_graph(graph_mode, str(tmp_path), "graph.pbtxt")
    for path in ("ckpt.meta", "ckpt", "saved", "graph.pbtxt"):
        assert placement.variables(tmp_path / path) == expected
    assert placement.variables(graph_mode) == expected


def test_operations_that_this_tensorflow_does_not_have_are_said(
    graph_mode: Any, tmp_path: Path
) -> None:
    model()
    graph_def = graph_mode.as_graph_def()
    graph_def.node.add(name="rows", op="KvResourceGather")
    (tmp_path / "graph.pbtxt").write_text(str(graph_def))
    done = subprocess.run(
        [*TENSORWIRE, "place", "--graph", tmp_path / "graph.pbtxt", "--ps", "2"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    words = " ".join(done.stdout.split())
    assert "this TensorFlow does not have the operations KvResourceGather" in words


def test_a_tf2_saved_model_has_its_variables(placement: Any, tmp_path: Path) -> None:
    module = tf.Module()
    module.table = tf.Variable(tf.zeros([100, 4]), name="table")
    module.bias = tf.Variable(tf.zeros([4]), name="bias")
    tf.saved_model.save(module, str(tmp_path / "saved"))
    found = {v.name: v.bytes for v in placement.variables(tmp_path / "saved")}
    assert found == {"table": 1600, "bias": 16}


def test_a_file_that_is_no_graph_is_refused(placement: Any, tmp_path: Path) -> None:
    (tmp_path / "x.meta").write_bytes(b"no graph")
    (tmp_path / "x.pbtxt").write_text("no graph")
    (tmp_path / "empty.pbtxt").write_text("")
    for name, says in [("x.meta", "no graph"), ("x.pbtxt", "no graph"), ("y", "cannot read")]:
        with pytest.raises(UsageError, match=says):
            placement.variables(tmp_path / name)
    with pytest.raises(UsageError, match="has no variables"):
        placement.variables(tmp_path / "empty.pbtxt")


STRATEGY = """
import json, os, sys, tempfile
import tensorflow as tf

PS = 3
cluster = json.loads(os.environ["CLUSTER"])
servers = [
    tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc")
    for job in ("ps", "worker") for index in range(len(cluster[job]))
]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
ROWS = 300_000

def task(variable):
    return int(tf.DeviceSpec.from_string(variable.device).task)

def tasks(variable):
    return [task(part) for part in getattr(variable, "variables", [variable])]

with strategy.scope():
    small = [tf.Variable(tf.zeros([1000]), name=f"small{i}") for i in range(4)]
    table = tf.Variable(
        lambda: tf.reshape(tf.range(ROWS * 4, dtype=tf.float32), [ROWS, 4]),
        shape=[ROWS, 4], dtype=tf.float32, name="table")

@tf.function
def step():
    return tf.nn.embedding_lookup(table, [0, ROWS - 1])

looked_up = coordinator.schedule(step).fetch().tolist()

folder = tempfile.mkdtemp(dir=sys.argv[1])
split = tf.train.Checkpoint(table=table).write(folder + "/split")
whole = tf.Variable(tf.zeros([ROWS, 4]))
tf.train.Checkpoint(table=whole).read(split).assert_consumed()
there = bool(tf.reduce_all(whole == tf.convert_to_tensor(table)))
whole.assign_add(tf.ones([ROWS, 4]))
tf.train.Checkpoint(table=table).read(tf.train.Checkpoint(table=whole).write(folder + "/whole"))
back = bool(tf.reduce_all(whole == tf.convert_to_tensor(table)))

from tensorwire.tf import placement

plan = placement.balanced([placement.Variable("by_api/table", (100, 4), 4)], PS, min_part_bytes=1)
placement.apply(plan, strategy)
with strategy.scope(), tf.name_scope("by_api"):
    applied = tasks(tf.Variable(tf.zeros([100, 4]), name="table"))
print(json.dumps({
    "small": [task(v) for v in small], "table": tasks(table), "looked_up": looked_up,
    "there": there, "back": back, "applied": applied, "planned": plan.tasks["by_api/table"],
}), flush=True)
os._exit(0)  # the coordinator's threads outlive their cluster
"""


@pytest.mark.usefixtures("placement")
def test_a_parameter_server_strategy_splits_and_places_by_plan(tmp_path: Path) -> None:
    script = tmp_path / "strategy.py"
    script.write_text(STRATEGY)
    with LocalCluster({"ps": 3, "worker": 1, "chief": 1}) as cluster:
        output = tmp_path / "out"
        argv = [*TENSORWIRE, "run", "--placement", "balanced", str(script), str(tmp_path)]
        env = {"CLUSTER": json.dumps(cluster.spec)}
        cluster.wait([cluster.start("chief", 0, argv, env, stdout=output)], 200)
        found = json.loads(output.read_text())
    assert found["table"] == sorted(found["table"]) == [0, 1, 2]
    assert found["looked_up"] == [[0, 1, 2, 3], [1199996, 1199997, 1199998, 1199999]]
    assert found["there"] and found["back"]
    assert len(set(found["small"])) == 3  # four equal variables on three ps
    assert found["applied"] == found["planned"] == [0, 1, 2]  # a plan in the script wins


def place(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TENSORWIRE, "place", *arguments, "--json", str(folder / "plans.json")],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **env},
    )


def names(folder: Path) -> list[str]:
    plans = json.loads((folder / "plans.json").read_text())["plans"]
    assert [plan["strategy"] for plan in plans] == ["round_robin", "greedy", "balanced"]
    return [variable["name"] for variable in plans[0]["variables"]]


@pytest.mark.newest
@pytest.mark.usefixtures("placement")
def test_place_shows_the_hot_ps_of_a_script_before_it_runs(tmp_path: Path) -> None:
    script = str(EXAMPLES / "hot_ps" / "train.py")
    task = {"cluster": {"ps": ["h:1"], "worker": ["h:2"]}, "task": {"type": "worker", "index": 0}}
    done = place("--script", script, "--ps", "5", folder=tmp_path, TF_CONFIG=json.dumps(task))
    assert done.returncode == 0, done.stderr
    assert "round_robin: ps:0 carries 100% of the bytes; embedding alone is 100%" in done.stdout
    assert "greedy: ps:0" in done.stdout and "balanced: ps:" not in done.stdout
    assert names(tmp_path)[:2] == ["embedding", "layer0/kernel"]


@pytest.mark.skipif(VERSION > (2, 15), reason="tf.estimator is in TensorFlow up to 2.15")
@pytest.mark.usefixtures("placement")
def test_place_runs_an_estimator_until_it_would_train(tmp_path: Path) -> None:
    script = str(EXAMPLES / "train_estimator.py")
    done = place("--script", script, "--ps", "2", folder=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["global_step", "weights"]
    assert not list(tmp_path.rglob("*.index"))  # nothing was trained


KERAS = """
import os
import tensorflow as tf
import tf_keras as keras

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = keras.Sequential([keras.layers.Embedding(5000, 16), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.legacy.Adagrad(), loss="mse")

def dataset(context):
    data = tf.data.Dataset.from_tensors((tf.zeros([4, 3], tf.int64), tf.zeros([4, 3, 1])))
    return data.repeat()

model.fit(keras.utils.experimental.DatasetCreator(dataset), steps_per_epoch=5)
"""


@pytest.mark.newest
def test_place_traces_the_first_step_of_a_keras_model(tmp_path: Path) -> None:
    pytest.importorskip("tf_keras")
    script = tmp_path / "fit.py"
    script.write_text(KERAS)
    done = place("--script", str(script), "--ps", "4", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    plans = json.loads((tmp_path / "plans.json").read_text())["plans"]
    found = {v["name"]: v for v in plans[0]["variables"]}
    assert found["embedding/embeddings"]["shape"] == [5000, 16]
    assert found["embedding/embeddings"]["slot_bytes"] == 5000 * 16 * 4  # Adagrad's accumulator
