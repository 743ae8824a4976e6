"""The plug-in's code under sanitizers: pushes, a cluster within one process, and inputs that
fuzzing has found (`make fuzz` looks for more).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from plugin_unit import (
    ADDRESS,
    FUZZ,
    NATIVE,
    THREAD,
    build_engine,
    build_unit,
    check,
)
from tensorwire.bench.lab.ports import PortLease

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(900, method="thread", func_only=True),
]

ROOT = NATIVE.parent
TESTS = NATIVE / "tensorflow/tests"
# No leak check, because TensorFlow itself never frees some memory.
NO_LEAKS = "detect_leaks=0"


@pytest.fixture
def gcc() -> list[str]:
    """Options of GCC that mark TensorFlow's classes as compiled without a sanitizer."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    return ["g++"]


def runner(command: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The command that runs a program with these flags; skips if such programs do not run here."""
    probe = [ROOT / ".ci/sanitized", *command, *flags]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(done.stdout.strip() or done.stderr.strip())
    return done.stdout.split()


def serve(before: Sequence[str], program: Path, **environment: str) -> None:
    ports = PortLease()  # until this returns
    addresses = [str(ports.take()) for _ in range(3)]
    check([*before, program, *addresses], TF_CPP_MIN_LOG_LEVEL="2", **environment)
    ports.release()


def test_the_plugin_touches_no_memory_that_is_not_its_own(gcc: list[str], tmp_path: Path) -> None:
    before = runner(gcc, ADDRESS)
    program = tmp_path / "sanitized_tests"
    build_unit(program, None, [TESTS / "sanitized_tests.cc"], gcc, ADDRESS)
    serve(before, program, ASAN_OPTIONS=NO_LEAKS)
    corpus = FUZZ.parent / "corpus"
    for target in ("tensor", "fused", "requests"):
        inputs = [str(corpus / target), str(corpus / f"{target}.learned")]
        check([*before, program, "replay", *inputs], FUZZ_TARGET=target, ASAN_OPTIONS=NO_LEAKS)


def test_the_plugin_has_no_data_race(gcc: list[str], tmp_path: Path) -> None:
    before = runner(gcc, THREAD)
    program, engine = tmp_path / "sanitized_tests", tmp_path / "libtensorwire.so"
    build_engine(engine, gcc, THREAD)
    files = [TESTS / "locks_for_tsan.cc", TESTS / "sanitized_tests.cc"]
    build_unit(program, None, files, gcc, THREAD, engine)
    for transport in ("tcp", "memory"):
        serve(before, program, TENSORWIRE_TRANSPORT=transport)
