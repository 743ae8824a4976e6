"""Resident memory of ps and worker over many steps: received tensors do not accumulate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory"
POOL_MB = 32


@pytest.mark.newest
@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_resident_memory_stays_within_the_pools_cap_over_many_steps(
    tmp_path: Path, transport: str
) -> None:
    path = tmp_path / "memory.json"
    # 1600 MB of tensors arrive after the first hundred steps.
    arguments = ["--data-mb=8", "--iters=300", f"--transport={transport}", f"--json={path}"]

    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "TENSORWIRE_POOL_MB": str(POOL_MB)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text())["results"]
    assert [result["task"] for result in results] == ["ps:0", "worker:0"]
    for result in results:
        assert result["pool_cap_mb"] == pytest.approx(POOL_MB * 2**20 / 1e6)
        assert result["highest_mb"] - result["early_mb"] < result["pool_cap_mb"]
