"""The comparison of layouts: invalid arguments, and results computed from metrics."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from command_line import one_line, run_in_process
from k8s_cluster.metrics import STEP_BYTES, metrics
from tensorwire.errors import UsageError
from tensorwire.k8s.in_cluster import ClusterStage
from tensorwire.k8s.job import Job
from tensorwire.k8s.layout import PUBLISHED
from tensorwire.k8s.layout_comparison import LayoutComparison, hot_model, look_at, workers_per_node


def test_without_a_control_plane_it_says_how_to_build_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("the lab runs a TensorFlow")
    monkeypatch.setenv("TENSORWIRE_CACHE", str(tmp_path))
    done = run_in_process(capsys, "k8s")("compare", "--case", "1", "--workers", "2")
    assert "run `make control-plane` in a clone of tensorwire" in one_line(done)


def test_what_tasks_of_one_node_send_each_other_is_not_between_nodes() -> None:
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
    with pytest.raises(UsageError, match="--workers must be at most"):
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
