"""The comparison of layouts, with a real control plane and real training.

In the lab it is `make k8s-compare`, and on a cluster `tensorwire k8s compare`.
"""

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

from command_line import Done, Run
from k8s_cluster.cluster import Cluster, eventually
from local_kubernetes import ControlPlane
from local_kubernetes.__main__ import compare
from tensorwire.bench.frame.record import Record
from tensorwire.bench.lab import cleanup_process
from tensorwire.bench.layouts.layout_result import LayoutResult
from tensorwire.cli.main import run_command

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="pods in the lab require root"),
]


TESTS = Path(__file__).parents[2]
IN_LAB = ("-m", "local_kubernetes")


@pytest.fixture
def run_in_lab(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `make k8s-compare` in this process."""

    def run(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as stop:
            run_command(compare, "k8s-compare", list(map(str, arguments)))
        return Done(int(stop.value.code or 0), *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--claim", "data:/data"), "--claim: only for a cluster"),
        (("--token-secret", "mine"), "--token-secret: only for a cluster"),
        (("--namespace", "a", "--context", "b"), "--namespace and --context: only for a cluster"),
        (("--annotation", "a=b", "--image", "i"), "--image and --annotation: only for a cluster"),
    ],
)
def test_options_of_a_cluster_are_refused_in_the_lab(
    run_in_lab: Run, arguments: tuple[str, ...], says: str
) -> None:
    done = run_in_lab("--case", "1", "--workers", "2", *arguments)
    assert done.status == 2
    assert says in done.err


def test_without_a_control_plane_it_says_how_to_build_one(
    run_in_lab: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENSORWIRE_CACHE", str(tmp_path))
    assert "run `make control-plane`" in run_in_lab("--case", "1", "--workers", "2").err


def test_one_command_trains_both_layouts_and_writes_the_page(
    control_plane: ControlPlane,
    python: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    record, report = tmp_path / "compare.json", tmp_path / "compare.html"
    # Without a limited link, the layouts would not differ.
    size = ("--case", "1", "--workers", "1", "--worker-cpu", "2", "--link", "500mbit")
    files = ("--json", record, "--report", report)
    done = python(
        *IN_LAB, *size, "--seconds", "1", *files, env={"PYTHONPATH": str(TESTS)}, timeout_s=500
    )
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
        return ["--case", "1", "--workers", "1", "--worker-cpu", "1", *script]

    return write


def test_a_script_that_fails_in_the_lab_is_told_with_its_last_line(
    pods_that: Callable[[str], list[str]], run_in_lab: Run
) -> None:
    done = run_in_lab(*pods_that("raise SystemExit('no data here')"), "--retries", "0")
    assert done.status == 1
    assert "the job compare has failed: worker:0 (pod compare-worker-0-0-" in done.err, done.err
    assert "no data here" in done.err


def test_tasks_that_do_not_get_up_in_the_lab_are_not_waited_for_forever(
    pods_that: Callable[[str], list[str]], run_in_lab: Run
) -> None:
    arguments = pods_that("import time; print('waiting', flush=True); time.sleep(600)")
    done = run_in_lab(*arguments, "--timeout", "1")
    assert done.status == 1
    assert "after 1 s 0 of 2 tasks are up and 0 of 1 train" in done.err


def test_ctrl_c_leaves_nothing_in_the_lab(
    pods_that: Callable[[str], list[str]], tmp_path: Path
) -> None:
    up = tmp_path / "up"
    arguments = pods_that("import time; time.sleep(600)")
    compare = subprocess.Popen(
        [sys.executable, *IN_LAB, *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
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
