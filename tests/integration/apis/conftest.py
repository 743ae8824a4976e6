"""The plug-in is compiled before the first training: no task spends its time to start on that."""

from __future__ import annotations

import subprocess

import pytest

from .support import TENSORWIRE


@pytest.fixture(scope="session", autouse=True)
def plugin() -> None:
    subprocess.run([*TENSORWIRE, "build"], check=True, timeout=1200)
