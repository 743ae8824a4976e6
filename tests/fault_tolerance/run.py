"""Runs TensorFlow's fault-tolerance tests (suite.py) and compares with what is expected.

usage: python tests/fault_tolerance/run.py [--protocols grpc,grpc++] [--tests NAME,…] [--json FILE]

With one protocol it fails where a test fails that passes on stock gRPC, or passes that fails there.
With several it prints the seconds of each test on each of them, too; they take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

SUITE = Path(__file__).with_name("suite.py")
CLASSES = ("MultiWorker", "SingleWorker")
TIMEOUT_S = 1500.0
# On stock gRPC as well: they want a program that Bazel has built.
FAIL_EVERYWHERE = frozenset({"testClusterCoordinatorDestroyed", "testPSPreemptionErrorType"})


@dataclass(frozen=True)
class Result:
    """One test on one protocol."""

    test: str
    protocol: str
    outcome: str
    """passed, failed or skipped."""
    seconds: float

    @property
    def is_expected(self) -> bool:
        fails = self.test.partition(".")[2] in FAIL_EVERYWHERE
        return self.outcome == "skipped" or (self.outcome == "failed") == fails


def run_suite(protocol: str, tests: list[str], folder: Path) -> list[Result]:
    """The tests named, `Class` or `Class.test`, in one process and those that it starts."""
    program, report = folder / "suite", folder / "report.xml"
    program.write_text(f"#!{sys.executable}\n{SUITE.read_text()}")
    program.chmod(0o755)
    report.unlink(missing_ok=True)
    log = folder / "suite.log"
    environment = {**os.environ, "PROTOCOL": protocol, "TF_CPP_MIN_LOG_LEVEL": "2"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, f"--xml_output_file={report}", f"--test_tmpdir={folder}", *tests],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"{protocol}: not done after {TIMEOUT_S:.0f} s", file=sys.stderr)
        finally:
            kill_group(process)
    if not report.exists():
        tail = log.read_text(errors="replace").splitlines()[-40:]
        raise SystemExit("\n".join([*tail, f"{protocol}: the suite ended without a report"]))
    return [as_result(case, protocol) for case in ElementTree.parse(report).iter("testcase")]


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The suite's tasks are in its group; some outlive a test that failed."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def as_result(case: ElementTree.Element, protocol: str) -> Result:
    """What absl's report says of a test."""
    failed = case.find("failure") is not None or case.find("error") is not None
    skipped = case.find("skipped") is not None or case.get("status") == "skipped"
    name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
    outcome = "failed" if failed else "skipped" if skipped else "passed"
    return Result(name, protocol, outcome, float(case.get("time", "0")))


def table(results: list[Result], protocols: list[str]) -> str:
    """Tests down, protocols across, the one that differs most first."""
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
    parser.add_argument("--tests", default=",".join(CLASSES), help="Class or Class.test, …")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    protocols = options.protocols.split(",")
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="fault_tolerance.") as folder:
        for test in options.tests.split(","):
            for protocol in protocols:
                print(f"{test} on {protocol} …", flush=True)
                results += run_suite(protocol, [test], Path(folder))
    print(table(results, protocols))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    unexpected = [result for result in results if not result.is_expected]
    for result in unexpected:
        print(f"{result.test} {result.outcome} on {result.protocol}", file=sys.stderr)
    return int(bool(unexpected) or not results)


if __name__ == "__main__":
    sys.exit(main())
