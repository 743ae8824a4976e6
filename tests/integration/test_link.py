"""benchmarks/link: both protocols over a link between two namespaces, beside iperf3."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("pyroute2")

pytestmark = pytest.mark.tensorflow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "link"


@pytest.mark.newest
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")
@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_the_tensor_goes_over_the_link_and_not_around_it(tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    size = ["--gbit=0.4", "--data-mb=4", "--iters=4", "--rounds=2", "--protocols=grpc++"]

    done = subprocess.run(
        [sys.executable, str(SCRIPT), *size, "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    (result,) = record["results"]
    assert (result["protocol"], result["data_mb"], result["iters"]) == ("grpc++", 4.0, 4)
    # A short cut through the machine's memory would be a hundred times faster.
    assert result["mb_per_s"] < 1.05 * 50
    assert set(record["ratios"]) == {"grpc++/iperf3"}
    assert "iperf3 (raw)" in done.stdout
