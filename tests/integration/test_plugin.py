"""The plug-in in a process: loading, counters, ConfigProto."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import tensorwire.tf  # noqa: E402 - after TensorFlow is known to be there


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


def test_a_misspelt_option_is_reported_as_by_tensorflow() -> None:
    with pytest.raises(ValueError, match="no_such_option"):
        tensorwire.tf.ConfigProto(no_such_option=True)
