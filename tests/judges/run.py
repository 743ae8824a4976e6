"""Runs others' test suites (suites.py) on several protocols, which take turns.

usage: python tests/judges/run.py [--protocols grpc,grpc++] [--suites NAME,…] [--tests NAME,…]
                                  [--sources DIR] [--record FILE]

The tests of a class share a process; those of a suite that says so have each their own, and so
have those of a class whose process crashed or did not end. Prints a table, and what cannot be had
and why. Fails if a test fails that does not fail on grpc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.zygote import Zygotes
from judges.suites import SUITES, Absent, Suite, find
from tensorwire.bench.lab.local import Process

PROGRAM = Path(__file__).with_name("program.py")
TEST_TIMEOUT_S = 300.0
CLASS_TIMEOUT_S = 900.0
LIST_TIMEOUT_S = 120.0
LAST_LINES = 300
HEAD = ("suite", "TensorFlow", "tests", "grpc", "grpc++", "seconds")


@dataclass(frozen=True)
class Result:
    """One test on one protocol."""

    suite: str
    test: str
    protocol: str
    outcome: str
    """passed, failed or skipped."""
    seconds: float


def kill(process: Process) -> None:
    """Kills a process and its tasks, which are in its process group; a failed test leaves some."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Interrupted(Exception):
    """The run is over."""


class Runner:
    """Starts processes with tests, in folders of their own."""

    def __init__(self, folder: Path, zygotes: Zygotes) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._running: set[Process] = set()
        self._over = False
        self._zygotes = zygotes
        self._program = folder / "suite"
        shutil.copyfile(PROGRAM, self._program)

    def stop(self) -> None:
        """Kills what runs; nothing is started any more."""
        with self._lock:
            self._over = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def tests_of(self, suite: Suite, file: Path) -> list[str]:
        """The names of a suite's tests, as Class.test."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        listed = folder / "tests.json"
        ended, said = self._run(
            suite, file, "grpc", folder, ["--list", str(listed)], LIST_TIMEOUT_S
        )
        if not listed.exists():
            print(f"{suite.name}: listing its tests {ended}:\n{said}", flush=True)
            raise Absent(f"it cannot be imported: {said.splitlines()[-1] if said else ended}")
        names: list[str] = json.loads(listed.read_text())
        return [name for name in names if re.search(suite.tests, name)]

    def run(self, suite: Suite, file: Path, tests: list[str], protocol: str) -> list[Result]:
        """Runs tests in one process, or one by one if that does not tell of each."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        report = folder / "report.xml"
        arguments = [f"--xml_output_file={report}", f"--test_tmpdir={folder}", *tests]
        began = time.monotonic()
        timeout_s = TEST_TIMEOUT_S if len(tests) == 1 else CLASS_TIMEOUT_S
        ended, said = self._run(suite, file, protocol, folder, arguments, timeout_s)
        wall_s = time.monotonic() - began
        found = read_report(report)
        missing = [test for test in tests if test not in found]
        if missing and len(tests) > 1:
            print(f"{tests[0].split('.')[0]} on {protocol} {ended}; its tests run one by one")
            return [result for test in tests for result in self.run(suite, file, [test], protocol)]
        # What a class sets up for all its tests is in no test's time.
        rest_s = max(0.0, wall_s - sum(seconds for _, seconds in found.values())) / len(tests)
        results = []
        for test in tests:
            outcome, seconds = found.get(test, ("failed", wall_s - rest_s))
            results.append(Result(suite.name, test, protocol, outcome, seconds + rest_s))
            print(f"{test} on {protocol}: {outcome}, {seconds:.1f} s", flush=True)
        if any(result.outcome == "failed" for result in results):
            print(f"the process of the tests {ended}; its last words:\n{said}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        return results

    def _run(
        self,
        suite: Suite,
        file: Path,
        protocol: str,
        folder: Path,
        arguments: list[str],
        timeout_s: float,
    ) -> tuple[str, str]:
        """Runs the program; returns how it ended and its last lines."""
        log = folder / "suite.log"
        with self._lock, log.open("wb") as output:
            if self._over:
                raise Interrupted
            process = self._zygotes.start(
                [sys.executable, str(self._program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    **suite.env,
                    "PROTOCOL": protocol,
                    "TEST_FILE": str(file),
                    "PYTHONFAULTHANDLER": "1",
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                },
                cwd=folder,
            )
            self._running.add(process)
        try:
            ended = f"ended with status {process.wait(timeout_s)}"
        except subprocess.TimeoutExpired:
            ended = f"did not end in {timeout_s:.0f} s"
            os.kill(process.pid, signal.SIGABRT)  # faulthandler prints the stacks of its threads
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        finally:
            kill(process)
            with self._lock:
                self._running.discard(process)
        return ended, "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])


def read_report(report: Path) -> dict[str, tuple[str, float]]:
    """The outcome and seconds of each test in absl's report.

    absl creates the report when the tests begin and writes it when they end: it is empty if the
    process crashed or did not end.
    """
    text = report.read_text() if report.exists() else ""
    results = {}
    for case in ElementTree.fromstring(text).iter("testcase") if text else []:
        failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None or case.get("status") == "skipped"
        outcome = "failed" if failed else "skipped" if skipped else "passed"
        of = case.get("classname", "").rpartition(".")[2]
        # A test with parameters has them after its name.
        name = f"{of}.{case.get('name', '').partition(' ')[0]}"
        results[name] = (outcome, float(case.get("time", "0")))
    return results


def units(suite: Suite, tests: list[str]) -> list[list[str]]:
    """The tests that share a process."""
    if suite.alone:
        return [[test] for test in tests]
    classes: dict[str, list[str]] = {}
    for test in tests:
        classes.setdefault(test.partition(".")[0], []).append(test)
    return list(classes.values())


def summarise(suite: Suite, version: str, results: list[Result]) -> dict[str, Any]:
    """A suite's row of the record."""
    row: dict[str, Any] = {
        "suite": suite.name,
        "tensorflow": version,
        "tests": len({result.test for result in results}),
        "protocols": {},
    }
    for protocol in dict.fromkeys(result.protocol for result in results):
        mine = [result for result in results if result.protocol == protocol]
        row["protocols"][protocol] = {
            "passed": sum(result.outcome == "passed" for result in mine),
            "skipped": sum(result.outcome == "skipped" for result in mine),
            "failed": sorted(result.test for result in mine if result.outcome == "failed"),
            "seconds": round(sum(result.seconds for result in mine), 1),
        }
    return row


def worse(results: Iterable[Result]) -> list[str]:
    """Tests that fail on another protocol and not on grpc."""
    results = list(results)
    on_grpc = {
        (result.suite, result.test)
        for result in results
        if result.protocol == "grpc" and result.outcome == "failed"
    }
    return [
        f"{result.suite}: {result.test} failed on {result.protocol}"
        for result in results
        if result.outcome == "failed" and (result.suite, result.test) not in on_grpc
    ]


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the record as a row of the table."""

    def passed(of: dict[str, Any]) -> str:
        skipped = f", {of['skipped']} skipped" if of["skipped"] else ""
        failed = f", {len(of['failed'])} failed" if of["failed"] else ""
        return f"{of['passed']}{failed}{skipped}"

    of = row["protocols"]
    told = [passed(of[protocol]) if protocol in of else "" for protocol in ("grpc", "grpc++")]
    seconds = ", ".join(f"{of[protocol]['seconds']:.0f}" for protocol in of)
    return (row["suite"], row["tensorflow"], str(row["tests"]), *told, seconds)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of a record as a Markdown table, and a list of what was not run."""
    ran = [cells(row) for row in rows if "absent" not in row]
    lines = [HEAD, tuple("---" for _ in HEAD), *ran]
    told = ["| " + " | ".join(line) + " |" for line in lines]
    absent: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "absent" in row:
            absent.setdefault((row["tensorflow"], row["absent"]), []).append(row["suite"])
    told += [
        f"\nNot run on {version} ({why}): {', '.join(suites)}."
        for (version, why), suites in absent.items()
    ]
    return "\n".join(told)


def slower(results: list[Result], protocols: list[str]) -> str:
    """The tests that differ most between the first and the last protocol."""
    seconds: dict[str, dict[str, float]] = {}
    for result in results:
        seconds.setdefault(result.test, {})[result.protocol] = result.seconds
    first, last = protocols[0], protocols[-1]
    both = {test: of[last] - of[first] for test, of in seconds.items() if len(of) > 1}
    return "\n".join(
        f"{test}: {seconds[test][first]:.1f} s on {first}, {seconds[test][last]:.1f} s on {last}"
        for test in sorted(both, key=lambda test: -both[test])[:10]
    )


def keep(record: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows into the record; they replace earlier ones of the same suite and TensorFlow."""
    kept = json.loads(record.read_text())["results"] if record.exists() else []
    now = {(row["suite"], row["tensorflow"]): row for row in rows}
    # A run without checkouts does not undo what one with them found.
    for row in kept:
        key = (row["suite"], row["tensorflow"])
        if key not in now or "absent" in now[key]:
            now[key] = row
    order = [suite.name for suite in SUITES]
    host = {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}
    told = {
        "command": "make judges SOURCES=DIR",
        "host": host,
        "results": sorted(
            now.values(), key=lambda row: (order.index(row["suite"]), row["tensorflow"])
        ),
    }
    record.write_text(json.dumps(told, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--protocols", default="grpc++", help="grpc, grpc++ or both")
    parser.add_argument("--suites", help="names of suites; all of them if not given")
    parser.add_argument("--tests", help="Class.test, …; all of them if not given")
    parser.add_argument("--sources", type=Path, help="a folder with checkouts")
    parser.add_argument("--at-once", type=int, default=1, help="processes that run side by side")
    parser.add_argument("--record", type=Path, help="where to keep the results")
    options = parser.parse_args()
    known = {suite.name for suite in SUITES}
    if options.suites and (unknown := set(options.suites.split(",")) - known):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if options.sources and not options.sources.is_dir():
        parser.error(f"--sources: there is no folder {options.sources}")
    return options


def main() -> int:
    options = parse()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    protocols = options.protocols.split(",")
    wanted = options.suites.split(",") if options.suites else [suite.name for suite in SUITES]
    installed = {
        each.metadata["Name"].lower().replace("_", "-"): each.version for each in distributions()
    }
    version = next(installed[n] for n in ("tensorflow-cpu", "tensorflow") if n in installed)
    sources = options.sources and options.sources.resolve()
    results: list[Result] = []
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="judges.", ignore_cleanup_errors=True) as folder,
        contextlib.closing(Zygotes()) as zygotes,
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        runner = Runner(Path(folder), zygotes)
        try:
            for suite in (suite for suite in SUITES if suite.name in wanted):
                try:
                    file = find(suite, sources, installed)
                    tests = runner.tests_of(suite, file)
                except Absent as error:
                    rows.append({"suite": suite.name, "tensorflow": version, "absent": str(error)})
                    continue
                if options.tests:
                    tests = [test for test in tests if test in options.tests.split(",")]
                running = [
                    pool.submit(runner.run, suite, file, unit, protocol)
                    for unit in units(suite, tests)
                    for protocol in protocols
                ]
                mine = [result for one in running for result in one.result()]
                results += mine
                rows.append(summarise(suite, version, mine))
                if options.record is not None:
                    keep(options.record, rows)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise
    if len(protocols) > 1:
        print(f"\nthe greatest differences:\n{slower(results, protocols)}")
    print(f"\n{table(rows)}")
    if options.record is not None:
        keep(options.record, rows)
    failed = worse(results)
    for line in failed:
        print(line, file=sys.stderr)
    return int(bool(failed) or not results)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
