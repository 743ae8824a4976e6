"""Both layouts of a case, compared by one command: our manifests really train in the lab."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("yaml")
pytest.importorskip("vl_convert")

from tensorwire.k8s.layout_result import LayoutResult
from tensorwire.measure.record import Record

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(600, func_only=True),
]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("openssl") is None, reason="pods in the lab take root"
)
def test_one_command_trains_both_layouts_and_writes_the_page(
    tensorwire: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    record, report = tmp_path / "compare.json", tmp_path / "compare.html"
    # A link is what makes the isolated layout another one.
    size = ("--case", "1", "--workers", "1", "--worker-cpu", "2", "--link", "500mbit")
    files = ("--json", record, "--report", report)
    done = tensorwire("k8s", "compare", *size, "--seconds", "1", *files, timeout_s=500)
    assert done.returncode == 0, done.stderr
    read = Record.from_json(record.read_text())
    colocated, isolated = (each for each in read.results if isinstance(each, LayoutResult))
    assert (colocated.nodes, isolated.nodes) == (1, 2)
    assert colocated.between_nodes_mb_per_s == 0 < isolated.between_nodes_mb_per_s
    for each in (colocated, isolated):
        assert each.steps_per_s > 0
        assert [load.task for load in each.tasks] == ["ps:0", "worker:0"]
        assert all(load.cores > 0 and load.memory_mb > 100 for load in each.tasks)
        assert all(load.in_mb_per_s > 0 < load.out_mb_per_s for load in each.tasks)
    page = report.read_text()
    assert "Case 1, 1 workers and 1 ps" in page
    assert "the case has 10 workers, and 1 ran" in page
