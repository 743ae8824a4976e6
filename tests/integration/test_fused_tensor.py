"""The format of fused tensors, tested in C++ against the installed TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugin_unit import build_unit, check

pytestmark = pytest.mark.timeout(300, method="thread", func_only=True)

TEST = Path(__file__).with_name("native") / "fused_tensor_test.cc"


def test_fused_tensors_come_apart_and_bad_bytes_are_refused(tmp_path: Path) -> None:
    files = ["tensors/fused_tensor.cc", "tensors/pool_allocator.cc", "tensors/tensor_codec.cc"]
    build_unit(tmp_path / "fused_tensor_test", files, [TEST])
    check([tmp_path / "fused_tensor_test"])
