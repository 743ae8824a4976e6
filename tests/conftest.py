"""Fixtures and markers for all tests."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import browsing

# No time limit per example, because other load on the machine changes the times.
hypothesis.settings.register_profile(
    "tensorwire", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("tensorwire"), max_examples=10
)
QUICK = os.environ.get("TENSORWIRE_TESTS") == "quick"
hypothesis.settings.load_profile("quick" if QUICK else "tensorwire")

# A process that a shell started in the background ignores Ctrl-C, and so do its children. Tests of
# Ctrl-C need the default handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that import TensorFlow at collection.
collect_ignore = ["integration", "unit/test_differential.py"]
if importlib.util.find_spec("tensorflow") is not None:
    collect_ignore = []

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def temporary_files_go_with_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Removes the logs that clusters with failed tasks keep; many tests make a task fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr("tempfile.tempdir", None)
        # Tasks also announce themselves there, and other tests may run at the same time.
        patch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield


def _skip(*_: object, **__: object) -> None:
    pytest.skip("starts a process: not of the quick tests")


@pytest.fixture(scope="session", autouse=True)
def quick_tests_start_no_process() -> Iterator[None]:
    """In `make quick`, skips a test when it tries to start a process."""
    with pytest.MonkeyPatch.context() as patch:
        if QUICK:
            patch.setattr(subprocess.Popen, "__init__", _skip)
            patch.setattr(os, "fork", _skip)
        yield


@pytest.fixture(scope="session", autouse=True)
def tasks_are_forked(
    temporary_files_go_with_the_tests: None, quick_tests_start_no_process: None
) -> Iterator[None]:
    """Forks tasks from a process with TensorFlow imported; TENSORWIRE_TESTS_EXEC=1: does not."""
    # `coverage` watches what is executed.
    by_exec = (
        os.environ.get("TENSORWIRE_TESTS_EXEC") == "1" or "COVERAGE_PROCESS_CONFIG" in os.environ
    )
    if QUICK or by_exec or importlib.util.find_spec("tensorflow") is None:
        yield
        return
    from harness import zygote

    with zygote.forking():
        yield


@pytest.fixture(scope="session", autouse=True)
def what_the_tests_did_is_in_the_junit_file(
    tasks_are_forked: None, record_testsuite_property: Callable[[str, object], None]
) -> Iterator[None]:
    from harness import tally

    with tally.counting_tasks():
        yield
    for name, count in tally.counted.items():
        record_testsuite_property(f"tensorwire.{name}", count)


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Runs a new interpreter in an empty folder: ``python("-c", code, env={...})``."""
    folder = tmp_path / "cwd"

    def run(
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 180.0,  # on a busy machine, TensorFlow's import takes a minute
    ) -> subprocess.CompletedProcess[str]:
        folder.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture
def tensorwire(python: Python) -> Python:
    """Runs the command line: ``tensorwire("build", "--help")``."""

    def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        return python("-m", "tensorwire.cli.main", *arguments, **options)

    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; skips the test if there is none."""
    with browsing.started() as browser:
        yield browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs quick tests first, so that mistakes show within seconds."""
    items.sort(key=lambda item: ("integration" in item.nodeid, "slow" in item.keywords))
    if os.environ.get("TENSORWIRE_TESTS") == "compatibility":
        skip = pytest.mark.skip(reason="does not depend on TensorFlow's version: run on the newest")
        for item in items:
            # That a test is right about gRPC, to which grpc++ is held, is shown on the newest.
            callspec = getattr(item, "callspec", None)
            values = [] if callspec is None else callspec.params.values()
            is_reference = any(isinstance(value, str) and value == "grpc" for value in values)
            if is_reference or item.get_closest_marker("newest") is not None:
                item.add_marker(skip)


def pytest_unconfigure() -> None:
    """Ends a process that does not end by itself, and shows what its threads wait for."""
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)


def _is_required(reason: str) -> bool:
    """True if REQUIRE forbids to skip a test for this reason.

    REQUIRE=root,chromium: one of these words is in the reason. REQUIRE=all: every reason, except
    that a test is for other versions of TensorFlow.
    """
    required = [word for word in os.environ.get("REQUIRE", "").split(",") if word]
    if required == ["all"]:
        return "TensorFlow" not in reason
    return any(word.lower() in reason.lower() for word in required)


def _fail_if_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome != "skipped" or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if _is_required(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped: {reason} (REQUIRE={os.environ['REQUIRE']})"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that was skipped for want of something that REQUIRE names."""
    report = yield
    _fail_if_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that is skipped as a whole."""
    report = yield
    _fail_if_required(report)
    return report
