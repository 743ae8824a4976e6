"""The runner of others' test suites: what it finds, what it counts, and the page with its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from judges import run
from judges.run import Result
from judges.suites import ESTIMATOR, SUITES, TENSORFLOW, TF_KERAS, Absent, Project, Suite, find

ROOT = Path(__file__).parents[2]
KERAS = Suite("keras a_test", "tf_keras/a_test.py", (TF_KERAS,))


def checkout(folder: Path, project: Project, version: str, *files: str) -> Path:
    told = folder / project.version_file
    told.parent.mkdir(parents=True)
    told.write_text(f'__version__ = "{version}"\nTF_VERSION = "{version}"\n')
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    return folder


def test_a_suite_is_taken_from_the_checkout_of_the_installed_version(tmp_path: Path) -> None:
    for version in ("2.15.0", "2.21.0"):
        checkout(tmp_path / version, TF_KERAS, version, "tf_keras/a_test.py")
    (tmp_path / "notes.txt").write_text("")
    installed = {"tf-keras": "2.21.3"}
    assert find(KERAS, tmp_path, installed) == tmp_path / "2.21.0/tf_keras/a_test.py"
    own = tmp_path / "2.21.0"
    assert find(KERAS, own, installed) == own / "tf_keras/a_test.py"


def test_what_cannot_be_had_says_why(tmp_path: Path) -> None:
    checkout(tmp_path / "keras", TF_KERAS, "2.21.0")
    tensorflow = Suite("b_test", "b_test.py", (TENSORFLOW,))
    estimator = Suite("c_test", "c_test.py", (ESTIMATOR,))
    installed = {"tf-keras": "2.21.0", "tensorflow-cpu": "2.21.0"}
    for suite, sources, have, why in (
        (KERAS, tmp_path, {"tf-keras": "2.15.0"}, "no checkout of tf-keras 2.15 in SOURCES"),
        (KERAS, tmp_path, installed, "tf-keras 2.21 has no such file"),
        (tensorflow, None, installed, "no checkout of tensorflow 2.21: SOURCES is not given"),
        (tensorflow, tmp_path, installed, "no checkout of tensorflow 2.21 in SOURCES"),
        (estimator, tmp_path, installed, "estimator is not installed"),
    ):
        with pytest.raises(Absent, match=why):
            find(suite, sources, have)


def test_what_the_wheel_carries_needs_no_checkout() -> None:
    (carried,) = [suite for suite in SUITES if not suite.projects]
    assert find(carried, None, {}).is_file()


def test_tests_share_a_process_with_those_of_their_class_or_with_none() -> None:
    tests = ["A.testX", "B.testX", "A.testY"]
    assert run.units(KERAS, tests) == [["A.testX", "A.testY"], ["B.testX"]]
    alone = Suite("alone", "alone.py", alone=True)
    assert run.units(alone, tests) == [["A.testX"], ["B.testX"], ["A.testY"]]


def test_a_report_is_read_and_that_of_a_crashed_process_is_empty(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert run.read_report(report) == {}
    report.write_text("")
    assert run.read_report(report) == {}
    report.write_text(
        """<testsuites><testsuite name="A">
        <testcase name="testX" classname="__main__.A" time="1.5"/>
        <testcase name="testY0 (1, 'a')" classname="__main__.A" time="0.5"><failure/></testcase>
        <testcase name="testZ" classname="__main__.A" time="0"><error/></testcase>
        <testcase name="testS" classname="__main__.A" status="skipped" time="0"/>
        </testsuite></testsuites>"""
    )
    assert run.read_report(report) == {
        "A.testX": ("passed", 1.5),
        "A.testY0": ("failed", 0.5),
        "A.testZ": ("failed", 0.0),
        "A.testS": ("skipped", 0.0),
    }


def test_only_what_grpc_passes_counts_against_another_protocol() -> None:
    results = [
        Result("a", "A.testX", "grpc", "failed", 1.0),
        Result("a", "A.testX", "grpc++", "failed", 1.0),
        Result("a", "A.testY", "grpc", "passed", 1.0),
        Result("a", "A.testY", "grpc++", "failed", 1.0),
        Result("b", "A.testX", "grpc++", "failed", 1.0),
    ]
    assert run.worse(results) == [
        "a: A.testY failed on grpc++",
        "b: A.testX failed on grpc++",
    ]
    row = run.summarise(KERAS, "2.21.0", results[:4])
    assert row["tests"] == 2
    assert row["protocols"]["grpc"]["failed"] == ["A.testX"]
    assert run.cells(row)[2:] == ("2", "1, 1 failed", "0, 2 failed", "2, 2")


def test_a_record_keeps_what_a_run_without_checkouts_cannot_repeat(tmp_path: Path) -> None:
    first, second = SUITES[0].name, SUITES[1].name
    measured = {"suite": second, "tensorflow": "2.21.0", "tests": 1, "protocols": {}}
    absent = {"suite": second, "tensorflow": "2.21.0", "absent": "no checkout"}
    other = {"suite": first, "tensorflow": "2.15.1", "tests": 2, "protocols": {}}
    record = tmp_path / "judges.json"
    for rows in ([measured], [absent, other]):
        run.keep(record, rows)
    assert json.loads(record.read_text())["results"] == [other, measured]
    run.keep(record, [{**measured, "tests": 3}])
    assert json.loads(record.read_text())["results"][1]["tests"] == 3


@pytest.mark.docs
def test_the_page_shows_the_record_and_names_what_is_worse_on_grpcpp() -> None:
    page = (ROOT / "docs/judges.md").read_text()
    rows = json.loads((ROOT / "benchmarks/results/judges.json").read_text())["results"]
    assert run.table(rows) in page
    assert {row["suite"] for row in rows} == {suite.name for suite in SUITES}
    for row in rows:
        of = row.get("protocols", {})
        failed = {protocol: set(of[protocol]["failed"]) for protocol in of}
        for test in failed.get("grpc++", set()) - failed.get("grpc", set()):
            assert f"`{test}`" in page
