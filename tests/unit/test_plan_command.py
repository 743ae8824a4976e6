"""`tensorwire plan` on the command line: its output, its files, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.calibration import CALIBRATION


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(CALIBRATION))
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--workers", "0"), "Invalid value for '--workers'"),
        (("--cores", "nan"), "Invalid value for '--cores': 'nan' is not a finite number"),
        (("--latency-us", "inf"), "'inf' is not a finite number"),
        (("--price-core", "nan", "--target", "9"), "'nan' is not a finite number"),
        (("--link", "fast"), "--link fast: write it as 10gbit"),
        (("--layout", "heap"), "--layout: unknown value heap: choose from colocated, isolated"),
        (("--protocol", "tcp"), "--protocol: unknown value tcp: choose from grpc"),
        (("--placement", ","), "--placement is empty"),
        (("--case", "9"), "there is no case 9; there are 1, 2, 3, 4"),
        (("--case", "1", "--target", "9"), "one question at a time"),
        (("--sweep", "workers"), "write it as workers=1..1000"),
        (("--backup-workers", "1"), "add --sync"),
        (("--model", "ctr"), "the calibration has no model ctr (it has none)"),
        (("--model", "one-big", "--from", "x.json"), "--from, --model or --graph, one of them"),
        (("--model", "one-big"), "the calibration has no costs of grpc++: it has grpc"),
        (("--model", "one-big", "--batch", "3"), "--batch is for --graph"),
        (("--from", "missing.json"), "cannot read missing.json"),
    ],
)
def test_wrong_usage_is_one_line(
    tensorwire: Any, calibration: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = tensorwire("plan", "--calibration", calibration, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot read {path}: No such file"),
        ("{", "{path} is not JSON"),
        ("[1]", "{path}: this file is not a record of `plan calibrate`"),
        (
            '{"command": "plan calibrate"}',
            "{path}: this file is not a record of `plan calibrate`: ",
        ),
        (json.dumps({**CALIBRATION, "costs": [1]}), "{path}: this file is not a record of"),
        (
            json.dumps({**CALIBRATION, "measured_ps": "two"}),
            "Expected `int`, got `str` - at `$.measured_ps`",
        ),
    ],
)
def test_what_is_no_calibration_is_wrong_usage(
    tensorwire: Any, tmp_path: Path, text: str | None, says: str
) -> None:
    path = tmp_path / "calibration.json"
    if text is not None:
        path.write_text(text)
    done = tensorwire("plan", "--calibration", path, "--model", "one-big")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert says.format(path=path) in line
    assert line.count(str(path)) == 1


def test_a_case_shows_both_scenarios_and_what_they_rest_on(
    tensorwire: Any, calibration: Path, tmp_path: Path
) -> None:
    record, page = tmp_path / "plan.json", tmp_path / "plan.html"
    done = tensorwire(
        "plan", "--calibration", calibration, "--case", "1", "--protocol", "grpc",
        "--json", record, "--report", page,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ps:0 carries" not in done.stdout  # it is the only ps
    document = json.loads(record.read_text())
    found = document["predictions"]
    assert [(each["layout"], each["placement"]) for each in found] == [
        ("colocated", "round_robin"),
        ("colocated", "balanced"),
        ("isolated", "round_robin"),
        ("isolated", "balanced"),
    ]
    assert {each["workers"] for each in found} == {10}
    assert document["calibration"]["host"]["cpu"] == "a CPU"
    assert "10 workers asked, at most 2 calibrated at once" in document["extrapolation"]
    for text in (done.stdout, page.read_text()):
        assert "a CPU, 2 cores" in text
        assert "10 workers asked, at most 2 calibrated at once" in text


def test_one_hot_ps_is_warned_of_with_the_variable_that_is_why(
    tensorwire: Any, calibration: Path
) -> None:
    done = tensorwire(
        "plan", "--calibration", calibration, "--case", "2", "--protocol", "grpc",
        "--placement", "round_robin", "--no-changes",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for layout in ("colocated", "isolated"):
        assert (
            f"warning: {layout}, round_robin, grpc: ps:0 carries 100% of the bytes of 5 ps; "
            "big alone is 100%"
        ) in done.stdout


def test_a_sweep_says_where_it_bends(tensorwire: Any, calibration: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = tensorwire(
        "plan", "--calibration", calibration, "--model", "one-big", "--protocol", "grpc",
        "--placement", "round_robin", "--ps", "1", "--sweep", "workers=1..12", "--report", page,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "it bends at" in done.stdout
    assert "bound by ps:0" in done.stdout
    assert "isolated, round_robin, grpc, 12 workers:" in page.read_text()  # a point of the curve


def test_a_target_names_the_cheapest_cluster(tensorwire: Any, calibration: Path) -> None:
    done = tensorwire(
        "plan", "--calibration", calibration, "--model", "one-big", "--protocol", "grpc",
        "--placement", "balanced", "--target", "100", "--price-core", "0.04",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "steps a second for" in done.stdout


def test_synchronous_training_is_predicted(tensorwire: Any, calibration: Path) -> None:
    done = tensorwire(
        "plan", "--calibration", calibration, "--model", "one-big", "--protocol", "grpc",
        "--sync", "--backup-workers", "1", "--stragglers", "0.3", "--no-changes",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "steps a second" in done.stdout


def test_the_page_says_what_its_verdict_its_loads_and_its_changes_refer_to(
    tensorwire: Any, calibration: Path
) -> None:
    done = tensorwire(
        "plan", "--calibration", calibration, "--model", "one-big", "--workers", "8", "--ps", "2",
        "--link", "1gbit", "--protocol", "grpc",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    busiest = {row[0]: row[3:] for row in cells if len(row) == 6 and row[0].startswith("isolated")}
    assert busiest == {
        "isolated, round_robin, grpc": ["ps:0 link in", "88%", "no"],
        "isolated, balanced, grpc": ["ps:0 link out", "91%", "yes"],
    }
    # Of the same whole as the loads of the tasks. A load is a mean of all transfers; the busiest
    # resource had those of this simulation, whose times are random.
    loads = {row[0]: int(row[-1][:-1]) for row in cells if len(row) == 7 and row[1] == "ps:0"}
    assert loads == {
        name: pytest.approx(int(busy[:-1]), abs=1) for name, (_, busy, _) in busiest.items()
    }
    assert "The fastest of 2 is isolated, balanced, grpc: " in done.stdout
    assert "Changes to isolated, round_robin, grpc, each by itself" in done.stdout
    assert "note: the job's own operations: " in done.stdout
    assert "8 workers asked, at most 2 calibrated at once" in done.stdout
