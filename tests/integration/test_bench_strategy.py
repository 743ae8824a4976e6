"""`tensorwire bench strategy` with a real TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import run_in_process

pytestmark = pytest.mark.timeout(300, func_only=True)

RESULT_FIELDS = ["protocol", "case", "data_mb", "iters", "functions_per_s", "step_ms"]


@pytest.mark.newest
def test_functions_are_measured_on_both_protocols(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    run = run_in_process(capsys, "bench", "strategy")
    done = run("--iters", "12", "--rounds", "2", "--json", path)
    assert done.status == 0, done.err
    record = json.loads(path.read_text())
    assert record["command"] == "bench strategy"
    assert [(r["protocol"], r["case"], r["data_mb"]) for r in record["results"]] == [
        ("grpc", "read", 10.0),
        ("grpc++", "read", 10.0),
        ("grpc", "tiny", 0.0),
        ("grpc++", "tiny", 0.0),
    ]
    for result in record["results"]:
        assert list(result) == RESULT_FIELDS
        assert result["iters"] == 12
        step = result["step_ms"]
        assert 0 < step["min"] <= step["p50"] <= step["p90"]
        assert result["functions_per_s"] == pytest.approx(1e3 / step["p50"], rel=0.5)
    assert set(record["ratios"]) == {"grpc++/grpc read", "grpc++/grpc tiny"}
    assert "Functions that a ParameterServerStrategy schedules" in done.out
