"""Runs TensorFlow's fault-tolerance tests of ClusterCoordinator (suite.py).

usage: python tests/fault_tolerance/run.py [--protocols grpc,grpc++] [--tests NAME,…] [--json FILE]

Prints the seconds of each test on each protocol, the tests first that differ most; the protocols
take turns. Fails where a test does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

SUITE = Path(__file__).with_name("suite.py")
# These want no thread of an earlier test's coordinator in their process.
ALONE = ("testClusterCoordinatorDestroyed", "testPSPreemptionErrorType")
CLASSES = ("MultiWorker", "SingleWorker")
ALL = (*CLASSES, *(f"{of}.{test}" for test in ALONE for of in CLASSES))
AT_ONCE = 2
TIMEOUT_S = 1500.0


@dataclass(frozen=True)
class Result:
    """One test on one protocol."""

    test: str
    protocol: str
    outcome: str
    """passed, failed or skipped."""
    seconds: float


class Suite:
    """The tests named (`Class` or `Class.test`), in one process and those that it starts."""

    def __init__(self, protocol: str, test: str, folder: Path) -> None:
        print(f"{test} on {protocol} …", flush=True)
        self.protocol = protocol
        folder.mkdir()
        program = folder / "suite"
        program.write_text(f"#!{sys.executable}\n{SUITE.read_text()}")
        program.chmod(0o755)
        self._report, self._log = folder / "report.xml", folder / "suite.log"
        environment = {
            **os.environ,
            "PROTOCOL": protocol,
            "LEAVE_OUT": ",".join(ALONE) if test in CLASSES else "",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [program, f"--xml_output_file={self._report}", f"--test_tmpdir={folder}", test],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def wait(self) -> list[Result]:
        """What came of the tests; exits with the end of the log where there is no report."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TIMEOUT_S)
        if not self._report.exists():
            tail = self._log.read_text(errors="replace").splitlines()[-40:]
            raise SystemExit("\n".join([*tail, f"{self.protocol}: the suite left no report"]))
        cases = ElementTree.parse(self._report).iter("testcase")
        return [as_result(case, self.protocol) for case in cases]

    def kill(self) -> None:
        """Its tasks are in its group; some outlive a test that failed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


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
    parser.add_argument("--tests", default=",".join(ALL), help="Class or Class.test, …")
    parser.add_argument("--together", action="store_true", help=f"{AT_ONCE} suites at a time")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    protocols = options.protocols.split(",")
    runs = [(test, protocol) for test in options.tests.split(",") for protocol in protocols]
    at_once = AT_ONCE if options.together else 1
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="fault_tolerance.") as folder:
        for first in range(0, len(runs), at_once):
            with contextlib.ExitStack() as running:
                suites = []
                for index, (test, protocol) in enumerate(runs[first : first + at_once], first):
                    suites.append(Suite(protocol, test, Path(folder, str(index))))
                    running.callback(suites[-1].kill)
                for suite in suites:
                    results += suite.wait()
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
