"""Compiles the plug-in before the first training, so that tasks do not spend their start on it."""

from __future__ import annotations

import subprocess

import pytest

from .support import TENSORWIRE


@pytest.fixture(scope="session", autouse=True)
def plugin() -> None:
    subprocess.run([*TENSORWIRE, "build"], check=True, timeout=1200)
