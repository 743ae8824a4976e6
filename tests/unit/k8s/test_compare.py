"""`tensorwire k8s compare`: on the tests' API server, and in the lab where jobs fail."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from k8s_double.api_server import ApiServer
from k8s_double.metrics import STEP_BYTES, metrics
from tensorwire.cli.main import main
from tensorwire.errors import UsageError
from tensorwire.k8s.in_cluster import ClusterStage
from tensorwire.k8s.job import Job
from tensorwire.k8s.layout import PUBLISHED
from tensorwire.k8s.layout_comparison import LayoutComparison, hot_model, look_at, workers_per_node
from tensorwire.k8s.layout_result import LayoutResult
from tensorwire.lab import cleanup_process
from tensorwire.measure.record import Record

CLUSTER = ("compare", "--image", "registry/image:1", "--case", "1", "--workers", "2")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["k8s", *arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def train(server: ApiServer) -> None:
    """Every pod runs and serves metrics; isolated, the ps is on a node of its own."""
    for pod in server.of_kind("pods"):
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        server.set_task(name, {"running": {}}, ready=True)
        role = labels["app.kubernetes.io/component"]
        index = labels["batch.kubernetes.io/job-completion-index"]
        layout = "isolated" if "podAntiAffinity" in str(pod["spec"]["affinity"]) else ""
        together = not layout or role == "worker"
        pod["spec"]["nodeName"] = "node-1" if together else "node-2"
        server.metrics[name] = lambda task=f"{role}:{index}": metrics(
            task, time.monotonic(), workers=2
        ).to_json()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--claim", "data:/data"), "--claim: of a cluster; name its --image"),
        (("--token-secret", "mine"), "--token-secret: of a cluster"),
        (("--namespace", "a", "--context", "b"), "--namespace and --context: of a cluster"),
    ],
)
def test_what_only_a_cluster_has_is_not_looked_for_in_the_lab(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert run("compare", "--case", "1", "--workers", "2", *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_both_layouts_run_on_the_cluster_one_after_the_other_and_nothing_stays(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.on_look = train
    record, report = tmp_path / "compare.json", tmp_path / "compare.html"
    files = ("--json", str(record), "--report", str(report))
    assert run(*CLUSTER, "--seconds", "1", *files) == 0, capsys.readouterr()
    assert {key[0] for key in api.objects} == {"namespaces"}
    read = Record.from_json(record.read_text())
    layouts = [each for each in read.results if isinstance(each, LayoutResult)]
    assert [each.layout for each in layouts] == ["colocated", "isolated"]
    for each in layouts:
        assert (each.case_workers, each.workers, each.ps) == (10, 2, 1)
        assert each.steps_per_s == pytest.approx(20, rel=0.3)
        assert {load.task for load in each.tasks} == {"ps:0", "worker:0", "worker:1"}
        assert all(load.cores == pytest.approx(0.25, rel=0.01) for load in each.tasks)
    assert list(read.ratios) == ["isolated/colocated"]
    out = capsys.readouterr().out
    assert "scaled down: the case has 10 workers, and 2 ran" in out
    assert "compare" in report.read_text()


def test_a_job_that_is_there_is_left_alone(
    api: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ("--name", "compare", "--image", "registry/image:1", "--script", "/app/train.py")
    assert run("submit", *job, "--workers", "4", "--ps", "2") == 0
    before = set(api.objects)
    assert run(*CLUSTER) != 0
    assert "is there" in capsys.readouterr().err
    assert set(api.objects) == before


def test_a_job_that_fails_ends_the_comparison_with_its_reason_and_is_removed(
    api: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(server: ApiServer) -> None:
        server.logs["compare-worker-0-0-x7k2p"] = "Traceback\nNo module named pandas\n"
        server.end_task("compare-worker-0-0-x7k2p", 1)
        server.end_job("compare-worker-0", "Failed")

    api.on_look = fail
    assert run(*CLUSTER) == 1
    assert "No module named pandas" in capsys.readouterr().err
    assert {key[0] for key in api.objects} == {"namespaces"}


def test_what_tasks_of_one_node_send_each_other_is_not_between_nodes(api: ApiServer) -> None:
    job = Job("flights", "image", hot_model(), workers=2, ps=1)
    tasks = ("ps:0", "worker:0", "worker:1")
    before, after = ([metrics(t, at, workers=2) for t in tasks] for at in (10.0, 14.0))
    where = {"ps:0": "a", "worker:0": "a", "worker:1": "b"}
    stage = ClusterStage.__new__(ClusterStage)
    assert look_at(before, after, job, dict.fromkeys(tasks, "a"), stage).between_nodes_mb_per_s == 0
    found = look_at(before, after, job, where, stage)
    assert found.between_nodes_mb_per_s == pytest.approx(10 * STEP_BYTES / 1e6)
    assert found.steps_per_s == pytest.approx(20)


@pytest.mark.parametrize(("case", "workers", "per_node"), [(0, None, 10), (0, 4, 4), (1, 10, 2)])
def test_fewer_workers_keep_the_servers_of_a_case(
    case: int, workers: int | None, per_node: int
) -> None:
    assert workers_per_node(PUBLISHED[case], workers) == per_node
    with pytest.raises(UsageError, match="--workers must be less than"):
        workers_per_node(PUBLISHED[case], 51)
    with pytest.raises(UsageError, match="a multiple of 5"):
        workers_per_node(PUBLISHED[1], 7)


def test_layouts_take_turns_under_each_placement() -> None:
    job = Job("flights", "image", hot_model(), workers=2, ps=1)
    plan = LayoutComparison(PUBLISHED[0], job, ("round_robin", "balanced"), rounds=3)
    names = [plan.side_name(*each) for each in plan.arrangements]
    assert names == [
        *("colocated round_robin", "isolated round_robin"),
        *("colocated balanced", "isolated balanced"),
    ]
    assert plan.blocks == 12


@pytest.fixture
def pods_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The arguments that compare jobs whose script is this text, in the lab."""
    if os.geteuid() != 0 or shutil.which("openssl") is None:
        pytest.skip("pods in the lab take root and openssl")
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("pods in the lab run a TensorFlow")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()

    def write(text: str) -> list[str]:
        (tmp_path / "train.py").write_text(text)
        script = ("--script", str(tmp_path / "train.py"))
        return ["compare", "--case", "1", "--workers", "1", "--worker-cpu", "1", *script]

    return write


def test_a_script_that_fails_in_the_lab_is_told_with_its_last_line(
    pods_that: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = pods_that("raise SystemExit('no data here')")
    assert run(*arguments, "--retries", "0") == 1
    said = capsys.readouterr().err
    assert "worker:0 (pod compare-worker-0-0.compare) has failed" in said, said
    assert "no data here" in said


def test_tasks_that_do_not_get_up_in_the_lab_are_not_waited_for_forever(
    pods_that: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = pods_that("import time; print('waiting', flush=True); time.sleep(600)")
    assert run(*arguments, "--up-within", "1") == 1
    assert "after 1 s 0 of 2 tasks are up and 0 of 1 train" in capsys.readouterr().err


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
        (directory,) = (tmp_path / "tmp").glob("tensorwire-*")
        token = directory.name.rpartition("-")[2]
        assert cleanup_process.processes_with(token)
        os.killpg(compare.pid, signal.SIGINT)
        assert compare.wait(60) == 130
    finally:
        compare.kill()
        compare.wait(20)
    assert not cleanup_process.processes_with(token)
    assert not list((tmp_path / "tmp").iterdir())
