"""Parts of the plug-in, tested in C++ against the installed TensorFlow: pushes over real
connections, and the formats of tensors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from plugin_unit import UNIT_FILES, UNIT_TESTS, build_unit, check

pytestmark = pytest.mark.timeout(300, method="thread", func_only=True)


def test_pushes_cost_nobody_a_tensor_and_bad_tensors_are_refused(tmp_path: Path) -> None:
    build_unit(tmp_path / "unit_tests", UNIT_FILES, [UNIT_TESTS])
    check([tmp_path / "unit_tests"])
