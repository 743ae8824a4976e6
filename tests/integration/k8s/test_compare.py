"""`tensorwire k8s compare` in the lab, with a real control plane and real training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("vl_convert")

from command_line import Run
from k8s_cluster.cluster import Cluster, eventually
from tensorwire.k8s.layout_result import LayoutResult
from tensorwire.k8s.local_kubernetes import ControlPlane
from tensorwire.lab import cleanup_process
from tensorwire.measure.record import Record

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="pods in the lab require root"),
]


def test_one_command_trains_both_layouts_and_writes_the_page(
    control_plane: ControlPlane,
    tensorwire: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    record, report = tmp_path / "compare.json", tmp_path / "compare.html"
    # Without a limited link, the layouts would not differ.
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


def test_a_job_that_is_there_is_left_alone(cluster: Cluster, run: Run) -> None:
    job = ("--name", "compare", "--image", "registry/image:1", "--script", "/app/train.py")
    assert run("submit", *job, "--workers", "4", "--ps", "2").status == 0
    image = ("--image", "registry/image:1", "--case", "1", "--workers", "2")
    assert "a different job of this name exists" in run("compare", *image).err
    assert len(cluster.of_kind("jobs")) == 4


@pytest.fixture
def pods_that(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[str]]:
    """The arguments of `compare` in the lab for jobs with this script text."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()

    def write(text: str) -> list[str]:
        (tmp_path / "train.py").write_text(text)
        script = ("--script", str(tmp_path / "train.py"))
        return ["compare", "--case", "1", "--workers", "1", "--worker-cpu", "1", *script]

    return write


def test_a_script_that_fails_in_the_lab_is_told_with_its_last_line(
    pods_that: Callable[[str], list[str]], run: Run
) -> None:
    done = run(*pods_that("raise SystemExit('no data here')"), "--retries", "0")
    assert done.status == 1
    assert "the job compare has failed: worker:0 (pod compare-worker-0-0-" in done.err, done.err
    assert "no data here" in done.err


def test_tasks_that_do_not_get_up_in_the_lab_are_not_waited_for_forever(
    pods_that: Callable[[str], list[str]], run: Run
) -> None:
    arguments = pods_that("import time; print('waiting', flush=True); time.sleep(600)")
    done = run(*arguments, "--up-within", "1")
    assert done.status == 1
    assert "after 1 s 0 of 2 tasks are up and 0 of 1 train" in done.err


def test_ctrl_c_leaves_nothing_in_the_lab(
    pods_that: Callable[[str], list[str]], tmp_path: Path
) -> None:
    up = tmp_path / "up"
    arguments = pods_that("import time; time.sleep(600)")
    compare = subprocess.Popen(
        [sys.executable, "-m", "tensorwire.cli.main", "k8s", *arguments],
        stderr=up.open("wb"),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while "0 of 2 tasks are up" not in up.read_text():
            assert time.monotonic() < deadline and compare.poll() is None, up.read_text()
            time.sleep(0.05)
        # The directories of the control plane and of the pods.
        clusters = f"tensorwire-{'[0-9a-f]' * 32}"
        found = [path.name for path in (tmp_path / "tmp").glob(clusters)]
        tokens = [name.rpartition("-")[2] for name in found]
        assert len(tokens) == 2
        eventually(lambda: all(cleanup_process.processes_with(token) for token in tokens))
        os.killpg(compare.pid, signal.SIGINT)
        assert compare.wait(60) == 130
    finally:
        compare.kill()
        compare.wait(20)
    assert not any(cleanup_process.processes_with(token) for token in tokens)
    assert not list((tmp_path / "tmp").iterdir())
