"""Resident memory of ps and worker over many steps: received tensors do not accumulate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


FAULTS = """
import resource
import tensorflow as tf
import tensorwire.tf
from tensorwire.bench.lab.ports import PortLease

tf1 = tf.compat.v1
address = f"127.0.0.1:{PortLease().take()}"
server = tf1.train.Server({"worker": [address]}, protocol="grpc++")
with tf.Graph().as_default():
    large = tf.fill([tf1.placeholder_with_default(8_000_000, [])], 1.0)
    with tf1.Session(server.target) as session:
        session.run(large.op)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    blocks = [b"x" * 20_000_000 for _ in range(3)]
    del blocks
print("faults", resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.newest
def test_other_blocks_of_the_process_are_reused_as_without_the_pool(
    plugin: None, python: Any
) -> None:
    done = python("-c", FAULTS, timeout_s=100)
    assert done.returncode == 0, done.stderr
    faults = int(done.stdout.split()[-1])
    assert faults < 50_000  # each page of each block would be 293,000
