"""Standing orders, tested in C++ over real connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugin_unit import PUSH_FILES, PUSH_TEST, build_unit, check

pytestmark = pytest.mark.timeout(300, method="thread", func_only=True)


def test_a_push_never_costs_anybody_a_tensor(tmp_path: Path) -> None:
    build_unit(tmp_path / "push_test", PUSH_FILES, [PUSH_TEST])
    check([tmp_path / "push_test"])
