"""Fixtures for tests of real clusters."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

# Of TensorFlow up to 2.16: see the environments in the Makefile.
collect_ignore = ["growing_tables"]
if importlib.util.find_spec("tensorflow_recommenders_addons") is not None:
    collect_ignore = []


@pytest.fixture(scope="session")
def plugin() -> None:
    """Compiles the plug-in, so that tasks do not spend their start on it."""
    command = [sys.executable, "-m", "tensorwire.cli.main", "build"]
    subprocess.run(command, check=True, timeout=1200)
