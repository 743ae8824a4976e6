"""The plug-in in a process: loading, counters, ConfigProto."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import tensorwire.tf  # noqa: E402 - only after TensorFlow was found
from tensorwire.metrics.task_metrics import PeerTraffic, TaskMetrics  # noqa: E402


def test_loading_again_is_nothing() -> None:
    assert tensorwire.tf.load() == tensorwire.tf.load()


def test_counters_begin_at_zero_and_are_numbers(python: Any) -> None:
    done = python("-c", "import json, tensorwire.tf as t; print('STATS', json.dumps(t.stats()))")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("STATS "))
    for name in ("tx_bytes", "rx_bytes", "tx_frames", "rx_frames", "recv_tensors"):
        assert f'"{name}": 0' in line


@pytest.mark.parametrize("first", ["tensorwire.tf", "tensorflow"])
def test_the_plugin_may_be_imported_before_or_after_tensorflow(python: Any, first: str) -> None:
    code = (
        f"import {first}\nimport tensorflow as tf, tensorwire.tf\n"
        "tf.compat.v1.train.Server({'worker': ['127.0.0.1:0']}, protocol='grpc++', start=False)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_config_proto_is_a_stock_one() -> None:
    made = tensorwire.tf.ConfigProto(allow_soft_placement=True, operation_timeout_in_ms=500)
    assert type(made) is tf.compat.v1.ConfigProto
    assert made == tf.compat.v1.ConfigProto(allow_soft_placement=True, operation_timeout_in_ms=500)


def test_tensorflows_own_config_proto_takes_the_names_of_rewrites() -> None:
    import copy
    import pickle

    stock = tf.compat.v1.ConfigProto
    made = stock(tensor_fuse=True, bundles=True, unique_pull=None, allow_soft_placement=True)
    rewrites = made.graph_options.rewrite_options.custom_optimizers
    assert [each.name for each in rewrites] == ["tensorwire_fuse", "tensorwire_bundles"]
    assert made == tensorwire.tf.ConfigProto(
        tensor_fuse=True, bundles=True, allow_soft_placement=True
    )
    assert isinstance(made, stock)
    assert type(made) is stock
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert stock.FromString(made.SerializeToString()) == made
    with pytest.raises(ValueError, match="no_such_option"):
        stock(tensor_fuse=True, no_such_option=True)


@pytest.mark.parametrize(
    "imported",
    ["import tensorflow.compat.v1 as tf", "import tensorflow; tf = tensorflow.compat.v1"],
)
def test_a_script_of_deeprec_fuses_tensors_under_run(
    python: Any, tmp_path: Path, imported: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{imported}\n"
        "config = tf.ConfigProto(tensor_fuse=True, device_filters=['/job:ps'])\n"
        "print('MADE', config.graph_options.rewrite_options.custom_optimizers[0].name)\n"
    )
    done = python("-m", "tensorwire.cli.main", "run", str(script))
    assert done.returncode == 0, done.stderr
    assert "MADE tensorwire_fuse" in done.stdout


def test_a_misspelt_option_is_reported_as_by_tensorflow() -> None:
    with pytest.raises(ValueError, match="no_such_option"):
        tensorwire.tf.ConfigProto(no_such_option=True)


def test_the_record_of_stats_has_the_metrics_and_sums_over_peers() -> None:
    metrics, traffic = ({each.name for each in fields(kind)} for kind in (TaskMetrics, PeerTraffic))
    sums = traffic - {"task", "peer"}
    own = {"rewrites", "wire_dtypes"}
    assert tensorwire.tf.stats().keys() == metrics - {"process", "steps"} | sums | own


def test_what_importing_changes_in_tensorflow_is_taken_back_on_request() -> None:
    from tensorflow.python.client import session
    from tensorflow.python.training import server_lib

    stock = tf.compat.v1.ConfigProto

    def changed() -> list[bool]:
        methods = (stock.__init__, server_lib.Server.join, session.BaseSession.partial_run_setup)
        return [hasattr(method, "__wrapped__") for method in methods]

    assert changed() == [True, True, True]
    try:
        library = tensorwire.tf.load(patches=False)
        assert changed() == [False, False, False]
        assert tensorwire.tf.load() == library
        assert changed() == [False, False, False]
        with pytest.raises(ValueError, match="tensor_fuse"):
            stock(tensor_fuse=True)
        assert tensorwire.tf.ConfigProto(tensor_fuse=True) != stock()
    finally:
        tensorwire.tf.load(patches=True)
    assert changed() == [True, True, True]
