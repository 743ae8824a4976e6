"""wire_dtype: floats of training steps are sent in 16 bits, and nothing else changes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorwire.errors import UsageError
from tensorwire.plugin.rewrites import WIRE_DTYPES
from tensorwire.tf import ConfigProto

from .fusing import STEP_TIMEOUT_MS
from .support import TensorFlowCluster, results_of, session_config, tf1

pytestmark = [pytest.mark.core, pytest.mark.timeout(240, method="thread", func_only=True)]

PS = "/job:ps/task:0"
W0 = "/job:worker/task:0"

wire_dtypes = pytest.mark.parametrize("wire_dtype", WIRE_DTYPES)


@contextlib.contextmanager
def session(cluster: TensorFlowCluster, graph: tf.Graph, **switches: Any) -> Iterator[Any]:
    config = ConfigProto(**switches)
    config.MergeFrom(session_config(STEP_TIMEOUT_MS))
    with tf1.Session(cluster.target(), graph, config) as made:
        made.run(tf1.global_variables_initializer())
        yield made


def rounded(values: Any, wire_dtype: str) -> Any:
    """The values rounded to the nearest 16-bit number."""
    return (
        np.asarray(values, np.float32).astype(tf.as_dtype(wire_dtype).as_numpy_dtype).astype("f4")
    )


def draw(*shape: int) -> Any:
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


def variable(name: str, values: Any, use_resource: bool = True) -> Any:
    with tf.device(PS):
        return tf1.get_variable(name, initializer=values, use_resource=use_resource)


def pushed(values: Sequence[float], name: str) -> tuple[Any, Any]:
    """A variable, and an update that stores the pushed gradient in it."""
    with tf.device(W0):
        gradient = tf1.placeholder_with_default(np.asarray(values, np.float32), [len(values)])
        gradient = tf.identity(gradient)
    weights = variable(name, np.zeros(len(values), np.float32))
    with tf.device(PS):
        update = tf1.train.GradientDescentOptimizer(-1.0).apply_gradients([(gradient, weights)])
    return weights, update


def listed(cluster: TensorFlowCluster, names: str) -> dict[str, str]:
    """Direction and dtype of the tensors of variables whose names begin with `names`."""
    entries: Any = cluster.stats("worker:0")["wire_dtypes"]
    return {
        f"{each['way']} {each['variable']}": each["dtype"]
        for each in entries
        if each["variable"].startswith(names)
    }


@wire_dtypes
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
def test_what_a_training_step_pulls_is_the_nearest_number(
    fusing_cluster: TensorFlowCluster, wire_dtype: str, use_resource: bool
) -> None:
    ids = [7, 3, 3, 0, 99, 7]
    name = f"pulled_{wire_dtype}_{use_resource}"
    with tf.Graph().as_default() as graph:
        table = variable(f"{name}_rows", draw(100, 4), use_resource)
        dense = variable(f"{name}_dense", draw(16, 32), use_resource)
        with tf.device(W0):
            here = tf.constant(ids)
        with tf.device(PS):
            rows = tf.gather(table, here)
        with tf.device(W0):
            pulled = [rows * 1.0, tf.convert_to_tensor(dense) * 1.0]
            loss = tf.add_n([tf.reduce_sum(each**2) for each in pulled])
        train = tf1.train.GradientDescentOptimizer(0.0).minimize(loss)
        for switches in ({}, {"exact_rewrites": True}):
            with session(fusing_cluster, graph, wire_dtype=wire_dtype, **switches) as made:
                found = made.run([*pulled, train])
            np.testing.assert_array_equal(found[0], rounded(draw(100, 4)[ids], wire_dtype))
            np.testing.assert_array_equal(found[1], rounded(draw(16, 32), wire_dtype))
    assert listed(fusing_cluster, name) == {
        f"pull {name}_rows": wire_dtype,
        f"pull {name}_dense": wire_dtype,
        f"push {name}_dense": wire_dtype,
    }  # not gradients of rows, because SGD adds them with an operation that users use for counting


@wire_dtypes
@pytest.mark.every_version
def test_gradients_are_rounded_so_that_their_mean_is_right(
    fusing_cluster: TensorFlowCluster, wire_dtype: str
) -> None:
    step = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[wire_dtype]
    gradients = np.full(20_000, 1.0 + step / 8)
    with tf.Graph().as_default() as graph:
        weights, update = pushed(gradients, "mean")
        with session(fusing_cluster, graph, wire_dtype=wire_dtype) as made:
            made.run(update)
            first = made.run(weights)
            made.run([weights.initializer])
            made.run(update)
            second = made.run(weights)
    assert set(np.unique(first)) == {1.0, 1.0 + step}
    # One in eight, within 5 standard deviations.
    assert np.mean(first > 1) == pytest.approx(1 / 8, abs=0.012)
    assert np.mean((first > 1) & (second > 1)) == pytest.approx(1 / 64, abs=0.005)


@wire_dtypes
def test_gradients_that_are_no_ordinary_numbers(
    fusing_cluster: TensorFlowCluster, wire_dtype: str
) -> None:
    largest = float(np.finfo(np.float32).max)
    values = [np.inf, -np.inf, np.nan, 0.0, largest, -largest, 65504.0, 65519.0, 1e-7, 0.5, -3.0]
    with tf.Graph().as_default() as graph:
        weights, update = pushed(values * 30, "numbers")
        with session(fusing_cluster, graph, wire_dtype=wire_dtype) as made:
            made.run(update)
            found = made.run(weights).reshape(30, len(values))
    np.testing.assert_array_equal(found[:, [0, 1, 3, 9, 10]], [[np.inf, -np.inf, 0, 0.5, -3]] * 30)
    assert np.isnan(found[:, 2]).all()
    small = found[:, 8]
    if wire_dtype == "bfloat16":
        assert np.isfinite(found[:, 4:]).all()
        np.testing.assert_allclose(found[:, 4], largest, rtol=2**-7)
        np.testing.assert_allclose(small, 1e-7, rtol=2**-7)
    else:  # its largest value is 65504, its smallest step is 2**-24
        np.testing.assert_array_equal(found[:, 4:8], [[np.inf, -np.inf, 65504, 65504]] * 30)
        assert set(small) <= {2.0**-24, 2.0**-23}


def test_what_is_saved_assigned_fetched_or_counted_stays_as_it_is(
    fusing_cluster: TensorFlowCluster, tmp_path: Path
) -> None:
    values = draw(40, 16)
    with tf.Graph().as_default() as graph:
        fetched = variable("kept/fetched", values)
        saved = variable("kept/saved", values)
        assigned = variable("kept/assigned", values)
        predicts = variable("kept/predicts", values)
        copied_to = variable("kept/copy", np.zeros_like(values))
        counter = variable("kept/counter", np.zeros(1000, np.float32))
        with tf.device(W0):
            copy = tf1.get_local_variable("kept_copy", initializer=tf.zeros_like(values))
            here = [tf.identity(each) for each in (fetched, saved, assigned, predicts)]
            count = tf.fill([1000], 1.0 + 2.0**-12)
            file = str(tmp_path / "checkpoint")
            save = tf.raw_ops.SaveV2(
                prefix=file, tensor_names=["w"], shape_and_slices=[""], tensors=[here[1]]
            )
            copied = copy.assign(here[2])
            back = tf.identity(here[2])
        with tf.device(PS):
            counted = counter.assign_add(count)
            copied_back = copied_to.assign(back)
        trained = [fetched, saved, assigned]
        train = tf1.train.GradientDescentOptimizer(0.0).minimize(
            tf.add_n([tf.reduce_sum(each * 2.0) for each in here[:3]]), var_list=trained
        )
        with session(fusing_cluster, graph, wire_dtype="bfloat16") as made:
            made.run(tf1.local_variables_initializer())
            step = [here[0], here[3] * 1.0, save, copied, counted, copied_back, train]
            found = made.run(step)
            kept = made.run([copy, counter, copied_to, fetched])
            predicted = made.run(tf.reshape(here[0] * 1.0, [40, 16]))
    np.testing.assert_array_equal(found[0], values)
    np.testing.assert_array_equal(found[1], values)  # a variable that is not trained
    np.testing.assert_array_equal(kept[0], values)
    np.testing.assert_array_equal(kept[1], np.full(1000, np.float32(1 + 2**-12)))
    np.testing.assert_array_equal(kept[2], values)
    np.testing.assert_array_equal(kept[3], values)
    np.testing.assert_array_equal(predicted, values)  # a step that trains nothing
    np.testing.assert_array_equal(tf.train.load_checkpoint(file).get_tensor("w"), values)
    pulls = [each for each in listed(fusing_cluster, "kept/") if each.startswith("pull")]
    assert pulls == []


def test_variables_are_excluded_by_their_names(fusing_cluster: TensorFlowCluster) -> None:
    values = draw(40, 16)
    with tf.Graph().as_default() as graph:
        both = [variable(f"{name}/kernel", values) for name in ("narrow_one", "left_out")]
        with tf.device(W0):
            here = [tf.convert_to_tensor(each) * 1.0 for each in both]
            loss = tf.add_n([tf.reduce_sum(each) for each in here])
        train = tf1.train.GradientDescentOptimizer(0.0).minimize(loss)
        excluded = {"wire_dtype": "bfloat16", "wire_dtype_exclude": ["left_*/kernel", "no/such"]}
        with session(fusing_cluster, graph, **excluded) as made:
            found = made.run([*here, train])
    np.testing.assert_array_equal(found[0], rounded(values, "bfloat16"))
    np.testing.assert_array_equal(found[1], values)
    assert listed(fusing_cluster, "left_out") == {
        "pull left_out/kernel": "float32",
        "push left_out/kernel": "float32",
    }


OPTIMIZERS = {
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
def test_training_comes_close_to_what_it_gives_with_32_bits(
    fusing_cluster: TensorFlowCluster, name: str, use_resource: bool
) -> None:
    ids = np.random.default_rng(2).zipf(1.3, 300) % 50

    def train(**switches: Any) -> list[Any]:
        with tf.Graph().as_default() as graph:
            tf1.set_random_seed(5)
            tables = [
                variable(f"close_{n}_{name}", draw(50, 8) / 8, use_resource) for n in range(5)
            ]
            dense = variable(f"close_dense_{name}", draw(40, 16) / 8, use_resource)
            with tf.device(W0):
                here = tf.identity(tf.constant(ids))
            rows = []
            for table in tables:
                with tf.device(PS):
                    rows.append(tf.gather(table, here))
            with tf.device(W0):
                deep = tf.matmul(tf.concat(rows, 1), tf.convert_to_tensor(dense))
                loss = tf.reduce_mean(tf.square(deep - 1.0))
            with tf1.device(tf1.train.replica_device_setter(1, worker_device=W0)):
                update = OPTIMIZERS[name]().minimize(loss)
            with session(fusing_cluster, graph, **switches) as made:
                losses = [made.run([loss, update])[0] for _ in range(5)]
                return [np.asarray(losses), *made.run([*tables, dense])]

    stock = train()
    for switches in ({}, {"exact_rewrites": True}):
        found = train(wire_dtype="bfloat16", **switches)
        for one, other in zip(found, stock, strict=True):
            # For a gradient near zero, Adam makes a full step in either direction.
            assert np.mean(np.isclose(one, other, atol=0.02, rtol=0.05)) > 0.98
        assert found[0][0] != stock[0][0]
        dense = listed(fusing_cluster, f"close_dense_{name}")
        assert dense == dict.fromkeys(
            [f"pull close_dense_{name}", f"push close_dense_{name}"], "bfloat16"
        )


def test_gradients_for_an_accumulator_are_rounded(fusing_cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(W0):
            gradient = tf.fill([1000], 1.0 + 2.0**-9)
        with tf.device(PS):
            accumulator = tf1.ConditionalAccumulator(tf.float32, [1000], shared_name="sums")
            apply = accumulator.apply_grad(gradient)
            taken = accumulator.take_grad(1)
        with session(fusing_cluster, graph, wire_dtype="bfloat16") as made:
            made.run(apply)
            assert set(np.unique(made.run(taken))) == {1.0, 1.0 + 2.0**-7}


def test_functions_send_16_bits_too(fusing_cluster: TensorFlowCluster, client_address: str) -> None:
    arguments = {
        "spec": {**fusing_cluster.spec, "client": [client_address]},
        "protocol": fusing_cluster.protocol,
    }
    script = Path(__file__).with_name("lookup_script.py")
    command = [sys.executable, "-m", "tensorwire.cli.main", "run", "--wire-dtype", "bfloat16"]
    found = results_of([*command, str(script), json.dumps(arguments)])
    outcomes = {
        each["outcome"]: each["places"]
        for each in found["rewrites"]
        if each["rewrite"] == "wire_dtype"
    }
    assert outcomes["applied"] == 2


def test_another_dtype_is_refused(fusing_cluster: TensorFlowCluster) -> None:
    with pytest.raises(
        UsageError, match="wire_dtype takes one of bfloat16, float16, float32, and not 'int8'"
    ):
        ConfigProto(wire_dtype="int8")
    with pytest.raises(UsageError, match="none may have a comma"):
        tf1.ConfigProto(wire_dtype=tf.bfloat16, wire_dtype_exclude="a,b")
    config = session_config(STEP_TIMEOUT_MS)
    entry = config.graph_options.rewrite_options.custom_optimizers.add()
    entry.name = "tensorwire_wire_dtype"
    entry.parameter_map["dtype"].s = b"fp8"
    with tf.Graph().as_default() as graph, tf.device(PS):
        one = tf.constant(1.0)
    with (
        tf1.Session(fusing_cluster.target(), graph, config) as made,
        pytest.raises(
            tf.errors.InvalidArgumentError, match=r'bfloat16, float16 or float32, and not "fp8"'
        ),
    ):
        made.run(one)
