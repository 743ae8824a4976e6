"""Invalid tensors and replies are rejected; tested in C++ against the installed TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugin_unit import build_unit, check

pytestmark = pytest.mark.timeout(300, method="thread", func_only=True)

TEST = Path(__file__).with_name("native") / "tensor_codec_test.cc"


def test_what_is_not_as_announced_is_refused_before_there_is_room_for_it(tmp_path: Path) -> None:
    files = [
        "tensors/fused_tensor.cc",
        "tensors/pool_allocator.cc",
        "calls/status.cc",
        "tensors/tensor_codec.cc",
    ]
    build_unit(tmp_path / "tensor_codec_test", files, [TEST])
    check([tmp_path / "tensor_codec_test"])
