"""`tensorwire bench steps` with a real TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import run_in_process

RESULT_FIELDS = ["protocol", "tensor_fuse", "case", "data_mb", "tensors", "iters", "step_ms"]

RECORD_FIELDS = ["command", "version", "tensorflow", "host", "time", "results", "ratios"]
RECORD_FIELDS += ["intervals", "ceilings", "noise", "transports"]


Bench = Callable[..., Any]


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Runs the command with more arguments, and returns its record."""

    def run(*arguments: str) -> Any:
        path = tmp_path / "record.json"
        done = run_in_process(capsys, "bench", "steps")("--json", path, *arguments)
        assert done.status == 0, done.err
        return json.loads(path.read_text())

    return run


def check_result(result: dict[str, Any], iters: int) -> None:
    assert list(result) == RESULT_FIELDS
    assert result["iters"] == iters
    assert (result["case"], result["tensors"]) in {("tiny", 1), ("many", 200)}
    assert result["data_mb"] == pytest.approx(result["tensors"] * 0.004096)
    step = result["step_ms"]
    assert 0 < step["min"] <= step["p50"] <= step["p90"]


@pytest.mark.newest
def test_one_case_has_the_plain_ratio(bench: Bench) -> None:
    arguments = ["--case", "tiny", "--iters", "20", "--rounds", "2"]
    record = bench(*arguments, "--protocols", "grpc,grpc++")
    assert list(record) == RECORD_FIELDS
    assert record["command"] == "bench steps"
    assert [(r["protocol"], r["case"]) for r in record["results"]] == [
        ("grpc", "tiny"),
        ("grpc++", "tiny"),
    ]
    for result in record["results"]:
        check_result(result, iters=20)
    assert set(record["ratios"]) == {"grpc++/grpc"}


@pytest.mark.newest
def test_fusion_is_a_side_of_its_own(bench: Bench) -> None:
    arguments = ["--case", "many", "--iters", "4", "--rounds", "2", "--tensor-fuse"]
    record = bench(*arguments, "--protocols", "grpc++")
    assert [result["tensor_fuse"] for result in record["results"]] == [False, True]
    assert set(record["ratios"]) == {"grpc++ fused/grpc++"}


@pytest.mark.newest
def test_both_cases_are_the_default(bench: Bench) -> None:
    record = bench("--iters", "6", "--rounds", "2", "--protocols", "grpc")
    assert [result["case"] for result in record["results"]] == ["tiny", "many"]
    for result in record["results"]:
        check_result(result, iters=6)
    assert record["ratios"] == {}
