"""The plug-in in a process: loading, counters, ConfigProto."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import tensorwire.tf  # noqa: E402 - after TensorFlow is known to be there
from tensorwire.tf import config  # noqa: E402

pytestmark = pytest.mark.tensorflow


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


def test_asking_for_fusion_warns_once_and_gives_a_config_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "_told", False)
    with pytest.warns(UserWarning, match="tensor_fuse=True has no effect yet"):
        made = tensorwire.tf.ConfigProto(tensor_fuse=True, allow_soft_placement=True)
    assert made == tf.compat.v1.ConfigProto(allow_soft_placement=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensorwire.tf.ConfigProto(tensor_fuse=True)


def test_a_misspelt_option_is_reported_as_by_tensorflow() -> None:
    with pytest.raises(ValueError, match="no_such_option"):
        tensorwire.tf.ConfigProto(no_such_option=True)
