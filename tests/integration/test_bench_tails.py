"""`tensorwire bench tails` with a real TensorFlow, and without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import run_in_process
from harness import zygote
from tensorwire.bench.lab import local

FIELDS = ["protocol", "tensor_fuse", "layer", "case", "bulk_mb", "steps", "steps_per_s"]
FIELDS += ["step_ms", "bulk_mb_per_s"]


@pytest.mark.newest
@pytest.mark.parametrize("layer", ["tensorflow", "rpc"])
def test_small_steps_are_measured_alone_and_beside_bulk(
    tmp_path: Path,
    layer: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if layer == "rpc":
        # The system's gRPC cannot be in one process with TensorFlow's.
        monkeypatch.setattr(local, "start_process", zygote.execute)
    path = tmp_path / "r.json"
    arguments = ["--layer", layer, "--data-mb", "20", "--seconds", "0.3", "--rounds", "2"]
    done = run_in_process(capsys, "bench", "tails")(*arguments, "--json", path)
    assert done.status == 0, done.err
    record = json.loads(path.read_text())
    assert [(r["protocol"], r["case"]) for r in record["results"]] == [
        (protocol, case) for case in ("alone", "beside bulk") for protocol in ("grpc", "grpc++")
    ]
    for result in record["results"]:
        assert list(result) == FIELDS
        step = result["step_ms"]
        assert 0 < step["p50"] <= step["p99"] <= step["p999"] <= step["max"]
        assert (result["bulk_mb_per_s"] is None) == (result["case"] == "alone")
    assert set(record["ratios"]) == {
        f"grpc++/grpc {what}"
        for what in ("alone", "beside bulk", "p99 beside bulk", "MB/s of the bulk")
    }
