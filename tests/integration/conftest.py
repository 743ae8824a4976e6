"""Fixtures for tests of real clusters."""

from __future__ import annotations

import subprocess
import sys

import pytest

# They change TensorFlow: see `make growing-tables-2.15.1`.
collect_ignore = ["growing_tables"]


@pytest.fixture(scope="session")
def plugin() -> None:
    """Compiles the plug-in, so that tasks do not spend their start on it."""
    command = [sys.executable, "-m", "tensorwire.cli.main", "build"]
    subprocess.run(command, check=True, timeout=1200)
