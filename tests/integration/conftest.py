"""Fixtures for tests of real clusters."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def plugin() -> None:
    """The plug-in is compiled: no task spends its time to start on that."""
    command = [sys.executable, "-m", "tensorwire.cli.main", "build"]
    subprocess.run(command, check=True, timeout=1200)
