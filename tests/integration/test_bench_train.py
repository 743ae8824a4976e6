"""`tensorwire bench train` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import run_in_process
from kernel import counts_bytes

pytest.importorskip("tensorflow")

RESULT_FIELDS = [
    "protocol",
    "tensor_fuse",
    "model",
    "steps",
    "steps_per_s",
    "examples_per_s",
    "auc",
    "rpcs_per_step",
    "wire_mb_per_step",
    "ps",
    "workers",
    "batch_size",
    "rewrites",
    "ps_operations_per_step",
    "data",
]


@pytest.mark.newest
def test_the_wide_model_is_trained_as_it_is_fused_and_with_all_exact_rewrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_path, page = tmp_path / "train.json", tmp_path / "train.html"
    size = ["--ps=1", "--workers=1", "--batch-size=64", "--steps=60", "--rounds=2"]
    sides = ["--protocols=grpc++", "--rewrites=tensor_fuse,exact_rewrites"]

    run = run_in_process(capsys, "bench", "train")
    done = run("--model=ctr", *size, *sides, f"--json={json_path}", f"--report={page}")

    assert done.status == 0, done.err
    record = json.loads(json_path.read_text())
    assert record["command"] == "bench train"
    single, fused, exact = record["results"]
    for result, tensor_fuse in ((single, False), (fused, True), (exact, False)):
        assert list(result) == RESULT_FIELDS
        assert (result["protocol"], result["tensor_fuse"]) == ("grpc++", tensor_fuse)
        assert result["model"] == "ctr"
        assert result["steps"] == 60
        assert result["examples_per_s"] == pytest.approx(64 * result["steps_per_s"], rel=1e-3)
        assert 0.4 < result["auc"] < 0.8
    # 226 columns: ids to the ps, embeddings back, and gradients. On a slow machine, some tensors
    # are requested although they are already in flight.
    assert 500 < single["rpcs_per_step"] < 1500
    assert fused["rpcs_per_step"] < 0.45 * single["rpcs_per_step"]
    if counts_bytes():
        assert fused["wire_mb_per_step"] == pytest.approx(single["wire_mb_per_step"], rel=0.25)
    assert fused["auc"] == pytest.approx(single["auc"], abs=0.05)
    assert exact["auc"] == pytest.approx(single["auc"], abs=0.05)
    assert exact["rewrites"] == ["exact_rewrites"]
    assert exact["rpcs_per_step"] < 0.45 * single["rpcs_per_step"]
    if counts_bytes():
        assert exact["wire_mb_per_step"] < single["wire_mb_per_step"]
    # All tables are on one ps here.
    assert exact["ps_operations_per_step"] < 0.1 * single["ps_operations_per_step"]
    assert set(record["ratios"]) == {
        "grpc++ fused/grpc++",
        "grpc++ exact/grpc++",
        "grpc++ exact/grpc++ fused",
    }
    assert "grpc++ fused" in done.out
    assert "Messages a step" in page.read_text()
