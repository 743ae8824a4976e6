"""Standing orders, tested in C++ over real connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugin_unit import NATIVE, build_unit, check

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300, method="thread", func_only=True)]

TEST = NATIVE / "tensorflow/tests/push_test.cc"


def test_a_push_never_costs_anybody_a_tensor(tmp_path: Path) -> None:
    files = [
        "counters.cc",
        "pool_allocator.cc",
        "push_inbox.cc",
        "standing_orders.cc",
        "status.cc",
        "tensor_codec.cc",
        "tensor_figures.cc",
    ]
    build_unit(tmp_path / "push_test", files, [TEST])
    check([tmp_path / "push_test"])
