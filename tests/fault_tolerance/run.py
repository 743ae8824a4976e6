"""Runs TensorFlow's fault-tolerance tests of ClusterCoordinator (suite.py).

usage: python tests/fault_tolerance/run.py [--protocols grpc,grpc++] [--tests NAME,…] [--json FILE]

Each test runs in its own process, because TensorFlow keeps a coordinator's threads, which would
continue to recover the cluster of an earlier test. Prints the seconds of each test on each
protocol, sorted by the difference. The protocols take turns. Fails if a test fails.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.zygote import Zygotes
from tensorwire.bench.lab.local import Process

SUITE = Path(__file__).with_name("suite.py")
CLASSES = ("MultiWorker", "SingleWorker")
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Result:
    """One test on one protocol."""

    test: str
    protocol: str
    outcome: str
    """passed, failed or skipped."""
    seconds: float


RUNNING: set[Process] = set()


def kill(process: Process) -> None:
    """Kills a test and its tasks, which are in its process group; a failed test may leave some."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_test(test: str, protocol: str, folder: Path, program: Path, zygotes: Zygotes) -> Result:
    """Runs one test in its own process."""
    folder.mkdir()
    report, log = folder / "report.xml", folder / "suite.log"
    with log.open("wb") as output:
        arguments = [f"--xml_output_file={report}", f"--test_tmpdir={folder}", test]
        process = zygotes.start(
            [sys.executable, str(program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "PROTOCOL": protocol,
                "PYTHONFAULTHANDLER": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
            cwd=folder,
        )
    RUNNING.add(process)
    try:
        ended = f"ended with status {process.wait(TIMEOUT_S)}"
    except subprocess.TimeoutExpired:
        ended = f"did not end in {TIMEOUT_S:.0f} s"
        os.kill(process.pid, signal.SIGABRT)  # faulthandler prints the stacks of its threads
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    kill(process)
    RUNNING.discard(process)
    result = read_report(report, test, protocol)
    print(f"{test} on {protocol}: {result.outcome}, {result.seconds:.1f} s", flush=True)
    if result.outcome == "failed":
        print(f"the test's process {ended}; its last words:")
        print("\n".join(log.read_text(errors="replace").splitlines()[-300:]), flush=True)
    return result


def read_report(report: Path, test: str, protocol: str) -> Result:
    """The result of the test in absl's report, which is empty if it crashed or did not end.

    absl creates the report when the test begins and writes it when the test ends.
    """
    text = report.read_text() if report.exists() else ""
    cases = list(ElementTree.fromstring(text).iter("testcase")) if text else []
    if len(cases) != 1:
        return Result(test, protocol, "failed", TIMEOUT_S)
    failed = cases[0].find("failure") is not None or cases[0].find("error") is not None
    skipped = cases[0].find("skipped") is not None or cases[0].get("status") == "skipped"
    outcome = "failed" if failed else "skipped" if skipped else "passed"
    return Result(test, protocol, outcome, float(cases[0].get("time", "0")))


def all_tests() -> list[str]:
    """The names of the tests of both classes."""
    found = find_spec("tensorflow")
    assert found is not None and found.origin is not None
    base = "python/distribute/coordinator/fault_tolerance_test_base.py"
    tree = ast.parse((Path(found.origin).parent / base).read_text())
    (suite,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "BaseFaultToleranceTest"
    )
    functions = [node.name for node in suite.body if isinstance(node, ast.FunctionDef)]
    names = sorted(name for name in functions if name.startswith("test"))
    return [f"{of}.{name}" for name in names for of in CLASSES]


def table(results: list[Result], protocols: list[str]) -> str:
    """A table with one row per test and one column per protocol, sorted by the difference."""
    seconds: dict[str, dict[str, Result]] = {}
    for result in results:
        seconds.setdefault(result.test, {})[result.protocol] = result

    def differs(of: dict[str, Result]) -> float:
        return of[protocols[-1]].seconds - of[protocols[0]].seconds if len(of) > 1 else 0.0

    lines = ["| test | " + " | ".join(protocols) + " |", "| --- |" + " --- |" * len(protocols)]
    for test, of in sorted(seconds.items(), key=lambda entry: -differs(entry[1])):
        cells = [
            f"{of[p].seconds:.1f} s" + ("" if of[p].outcome == "passed" else f", {of[p].outcome}")
            for p in protocols
            if p in of
        ]
        lines.append(f"| {test} | " + " | ".join(cells) + " |")
    sums = [sum(r.seconds for r in results if r.protocol == p) for p in protocols]
    lines.append(f"| all {len(seconds)} | " + " | ".join(f"{s:.0f} s" for s in sums) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocols", default="grpc++", help="grpc, grpc++ or both")
    parser.add_argument("--tests", help="Class.test, …; all of them if not given")
    parser.add_argument("--at-once", type=int, default=1, help="tests that run side by side")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    protocols = options.protocols.split(",")
    tests = options.tests.split(",") if options.tests else all_tests()
    runs = [(test, protocol) for test in tests for protocol in protocols]
    with (
        tempfile.TemporaryDirectory(prefix="fault_tolerance.") as folder,
        contextlib.closing(Zygotes()) as zygotes,
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        program = Path(folder, "suite")
        shutil.copyfile(SUITE, program)
        running = [
            pool.submit(run_test, test, protocol, Path(folder, str(index)), program, zygotes)
            for index, (test, protocol) in enumerate(runs)
        ]
        try:
            results = [one.result() for one in running]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                kill(process)
            raise
    print(table(results, protocols))
    if options.json is not None:
        record = {
            "command": f"tests/fault_tolerance/run.py --protocols {options.protocols}",
            "tensorflow": version("tensorflow-cpu"),
            "host": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    failed = [result for result in results if result.outcome == "failed"]
    for result in failed:
        print(f"{result.test} failed on {result.protocol}", file=sys.stderr)
    return int(bool(failed) or not results)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
