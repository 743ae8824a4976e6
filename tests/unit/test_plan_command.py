"""`tensorwire plan` on the command line: its output, its files, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import run_in_process
from harness.calibration import CALIBRATION

Plan = Callable[..., str]


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Runs the command with a small calibration; returns what it shows."""
    (tmp_path / "calibration.json").write_text(json.dumps(CALIBRATION))
    run = run_in_process(capsys, "plan", "--calibration", str(tmp_path / "calibration.json"))

    def shown(*arguments: str | Path) -> str:
        done = run(*arguments)
        assert done.status == 0, done.err
        return done.out

    return shown


def test_a_case_shows_both_scenarios_and_what_they_rest_on(plan: Plan, tmp_path: Path) -> None:
    record, page = tmp_path / "plan.json", tmp_path / "plan.html"
    out = plan(
        "--case", "1", "--protocols", "grpc",
        "--json", record, "--report", page,
    )  # fmt: skip
    assert "ps:0 carries" not in out  # it is the only ps
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
    for text in (out, page.read_text()):
        assert "a CPU, 2 cores" in text
        assert "10 workers asked, at most 2 calibrated at once" in text


def test_one_hot_ps_is_warned_of_with_the_variable_that_is_why(plan: Plan) -> None:
    out = plan(
        "--case", "2", "--protocols", "grpc",
        "--placement", "round_robin", "--no-changes",
    )  # fmt: skip
    for layout in ("colocated", "isolated"):
        assert (
            f"warning: {layout}, round_robin, grpc: ps:0 carries 100% of the bytes of 5 ps; "
            "big alone is 100%"
        ) in out


def test_a_sweep_says_where_it_bends(plan: Plan, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    out = plan(
        "--model", "one-big", "--protocols", "grpc",
        "--placement", "round_robin", "--ps", "1", "--sweep", "workers=1..12", "--report", page,
    )  # fmt: skip
    assert "it bends at" in out
    assert "bound by ps:0" in out
    assert "isolated, round_robin, grpc, 12 workers:" in page.read_text()  # a point of the curve


def test_a_target_names_the_smallest_cluster(plan: Plan) -> None:
    out = plan(
        "--model", "one-big", "--protocols", "grpc",
        "--placement", "balanced", "--steps-per-s", "100",
    )  # fmt: skip
    assert "steps a second on" in out


def test_synchronous_training_is_predicted(plan: Plan) -> None:
    out = plan(
        "--model", "one-big", "--protocols", "grpc",
        "--sync", "--stragglers", "0.3", "--no-changes",
    )  # fmt: skip
    assert "steps a second" in out


def test_the_page_says_what_its_verdict_its_loads_and_its_changes_refer_to(plan: Plan) -> None:
    out = plan(
        "--model", "one-big", "--workers", "8", "--ps", "2",
        "--link", "1gbit", "--protocols", "grpc",
    )  # fmt: skip
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
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
    assert "The fastest of 2 is isolated, balanced, grpc: " in out
    assert "Changes to isolated, round_robin, grpc, each by itself" in out
    assert "note: the job is one-big; its own operations: " in out
    assert "8 workers asked, at most 2 calibrated at once" in out
