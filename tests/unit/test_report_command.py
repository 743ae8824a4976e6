"""`tensorwire report`: shows records again, alone or side by side."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tensorwire.bench.experiments.all_layers import LayerResult, what_is_left
from tensorwire.bench.experiments.runs import read
from tensorwire.bench.experiments.train import TrainResult
from tensorwire.bench.experiments.transfer import TransferResult
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.columns import StepMs
from tensorwire.bench.frame.record import Machine, Ratio, Record, Result
from tensorwire.cli.main import main
from tensorwire.report import terminal

STEP = StepMs(50.0, 55.0, 45.0)
TRANSFER = Record[Result](
    "bench transfer",
    "2.21.0",
    [
        TransferResult("grpc", False, 100.0, 1, 30, 1000.0, STEP, 1.9),
        TransferResult("grpc++", False, 100.0, 1, 30, 2000.0, STEP, None),
    ],
    {"grpc++/grpc": Ratio(2.0, (1.9, 2.1))},
    host=Machine("EPYC", 2, "6.1"),
)
TRAIN = Record[Result](
    "bench train",
    "2.21.0",
    [
        TrainResult("grpc", False, "flights", 600, 50.0, 12800.0, 0.66, 226.0, 2.0),
        TrainResult("grpc++", False, "flights", 600, 150.0, 38400.0, 0.66, 226.0, 2.0),
    ],
    {"grpc++/grpc": Ratio(3.0, (2.9, 3.1))},
)
SUITE = Record(
    "bench all",
    "2.21.0",
    what_is_left([TRANSFER, TRAIN]),
    {"grpc++/grpc train": Ratio(3)},
    records=[TRANSFER, TRAIN],
    failures={"serve": "a task failed"},
    notes=["a note"],
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["report", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def test_one_record_looks_as_it_did_when_it_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "transfer.json"
    path.write_text(TRANSFER.to_json())
    status, out, _ = run(capsys, path, "--report", tmp_path / "page.html")
    assert status == 0
    assert "grpc++ moves 100 MB from worker to ps 2.00 times as fast as grpc." in out
    assert "1.90 to 2.10" in out
    assert "1.90 to 2.10" in (tmp_path / "page.html").read_text()


def test_runs_of_one_command_are_side_by_side_with_where_they_ran(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "before.json").write_text(TRANSFER.to_json())
    second: Any = TRANSFER.results[1]
    faster = dataclasses.replace(
        TRANSFER,
        results=[dataclasses.replace(second, mb_per_s=4321.0)],
        ratios={"grpc++/grpc": Ratio(4.0, (3.8, 4.2))},
        version="9.9.9",
        host=Machine("Xeon", 64, "6.9"),
    )
    (tmp_path / "after.json").write_text(faster.to_json())
    status, out, _ = run(
        capsys,
        tmp_path / "before.json",
        tmp_path / "after.json",
        "--report",
        tmp_path / "page.html",
    )
    assert status == 0
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines()]
    assert ["Tensors of 100 MB, MB/s", "grpc", "1000", "-"] in rows
    assert ["Tensors of 100 MB, MB/s", "grpc++", "2000", "4320"] in rows
    assert ["grpc++/grpc", "2.00 (1.90 to 2.10)", "4.00 (3.80 to 4.20)"] in rows
    assert all(text in out for text in ("before", "after", "9.9.9", "Xeon, 64 cores"))
    assert "4320 MB/s" in (tmp_path / "page.html").read_text()


def test_files_of_one_name_are_told_apart_by_their_folders(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "transfer.json")
        paths[-1].write_text(TRANSFER.to_json())
    _, out, _ = run(capsys, *paths)
    assert "a/transfer" in out and "b/transfer" in out


def test_different_commands_are_shown_one_after_the_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "transfer.json").write_text(TRANSFER.to_json())
    (tmp_path / "train.json").write_text(TRAIN.to_json())
    status, out, _ = run(capsys, tmp_path / "transfer.json", tmp_path / "train.json")
    assert status == 0
    assert "Tensor transfer, 100 MB" in out and "Wide & Deep on flights" in out


def test_a_suite_survives_its_json_and_is_a_record_too(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(SUITE.to_json())
    assert read(path) == SUITE
    document = json.loads(path.read_text())
    assert document["command"] == "bench all"
    assert [each["layer"] for each in document["results"]] == [
        "transfer",
        "transfer",
        "train",
        "train",
    ]
    assert document["ratios"] == {"grpc++/grpc train": 3}


def test_a_suite_says_in_short_what_was_found_and_what_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.show([showing.section(SUITE)])
    out = capsys.readouterr().out
    assert "grpc++ moves a tensor of 100 MB at 2000 MB/s, 2.00 times as fast as grpc." in out
    assert "warning: serve: a task failed" in out.splitlines()
    assert "note: a note" in out.splitlines()


def test_a_suite_warns_of_the_ratios_that_the_rounds_do_not_support(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ratios = {f"firm {number}": Ratio(2.0, (1.9, 2.1)) for number in range(10)}
    doubtful = dataclasses.replace(SUITE, ratios={**ratios, "loose": Ratio(2.0, (1.0, 3.0))})
    terminal.show([showing.section(doubtful)])
    assert "the rounds do not support 1 of 11 ratios: loose;" in capsys.readouterr().out


def test_the_link_of_a_lab_is_the_lowest_layer_and_iperf3_stands_beside_tcp() -> None:
    in_lab = dataclasses.replace(
        TRANSFER,
        baselines={"tcp": 1000.0, "iperf3": 1200.0},
        lab={"network": True, "rate_mbit_per_s": [10_000.0, 20_000.0]},
    )
    assert what_is_left([in_lab])[:4] == [
        LayerResult("link", None, None, 1250.0, None),
        LayerResult("iperf3", None, None, 1200.0, 0.96),
        LayerResult("tcp", None, None, 1000.0, 0.8),
        LayerResult("transfer", "grpc", 100_000_000, 1000.0, 1.0),
    ]


def test_each_layer_is_a_share_of_the_one_below_it_under_the_same_protocol() -> None:
    assert what_is_left([TRAIN, TRANSFER]) == [
        LayerResult("transfer", "grpc", 100_000_000, 1000.0, None),
        LayerResult("transfer", "grpc++", 100_000_000, 2000.0, None),
        LayerResult("train", "grpc", None, 100.0, 0.1),
        LayerResult("train", "grpc++", None, 300.0, 0.15),
    ]
