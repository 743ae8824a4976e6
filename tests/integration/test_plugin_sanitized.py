"""The plug-in's code under sanitizers: in a cluster within one process, and with inputs that
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
    PUSH_FILES,
    PUSH_TEST,
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
REPLAY = NATIVE / "wire/fuzz/replay_main.cc"
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


def test_the_plugin_at_work_touches_no_memory_that_is_not_its_own(
    gcc: list[str], tmp_path: Path
) -> None:
    before = runner(gcc, ADDRESS)
    program = tmp_path / "cluster_test"
    build_unit(program, None, [TESTS / "cluster_test.cc"], gcc, ADDRESS)
    serve(before, program, ASAN_OPTIONS=NO_LEAKS)


def test_what_was_found_by_fuzzing_does_no_harm(gcc: list[str], tmp_path: Path) -> None:
    before = runner(gcc, ADDRESS)
    program = tmp_path / "plugin_fuzz"
    build_unit(program, None, [FUZZ, REPLAY], gcc, ADDRESS)
    corpus = FUZZ.parent / "corpus"
    for target in ("tensor", "fused", "requests"):
        inputs = [str(corpus / target), str(corpus / f"{target}.learned")]
        check([*before, program, *inputs], FUZZ_TARGET=target, ASAN_OPTIONS=NO_LEAKS)


def test_pushes_touch_no_memory_that_is_not_their_own(gcc: list[str], tmp_path: Path) -> None:
    before = runner(gcc, ADDRESS)
    program = tmp_path / "push_test"
    build_unit(program, PUSH_FILES, [PUSH_TEST], gcc, ADDRESS)
    check([*before, program], ASAN_OPTIONS=NO_LEAKS)


def test_pushes_have_no_data_race(gcc: list[str], tmp_path: Path) -> None:
    before = runner(gcc, THREAD)
    program, engine = tmp_path / "push_test", tmp_path / "libtensorwire.so"
    build_engine(engine, gcc, THREAD)
    files = [TESTS / "locks_for_tsan.cc", PUSH_TEST]
    build_unit(program, PUSH_FILES, files, gcc, THREAD, engine)
    check([*before, program])


def test_the_plugin_at_work_has_no_data_race(gcc: list[str], tmp_path: Path) -> None:
    before = runner(gcc, THREAD)
    program, engine = tmp_path / "cluster_test", tmp_path / "libtensorwire.so"
    build_engine(engine, gcc, THREAD)
    files = [TESTS / "locks_for_tsan.cc", TESTS / "cluster_test.cc"]
    build_unit(program, None, files, gcc, THREAD, engine)
    for transport in ("tcp", "memory"):
        serve(before, program, TENSORWIRE_TRANSPORT=transport)
