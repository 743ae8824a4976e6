"""The comparison of layouts: invalid arguments, and results computed from metrics."""

from __future__ import annotations

import pytest

from command_line import one_line, run_in_process
from k8s_cluster.metrics import STEP_BYTES, metrics
from tensorwire.bench.layouts.job_runner import JobRunner
from tensorwire.bench.layouts.layout_comparison import (
    LayoutComparison,
    hot_model,
    result_of,
    workers_per_node,
)
from tensorwire.errors import UsageError
from tensorwire.k8s.job import Job
from tensorwire.k8s.layout import PUBLISHED


def test_without_a_cluster_it_names_the_command_of_a_clone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = run_in_process(capsys, "k8s")("compare", "--case", "1", "--workers", "2")
    assert "`make k8s-compare` in a clone of tensorwire" in one_line(done, 2)


def test_what_tasks_of_one_node_send_each_other_is_not_between_nodes() -> None:
    job = Job("flights", "image", hot_model(), workers=2, ps=1)
    tasks = ("ps:0", "worker:0", "worker:1")
    before, after = ([metrics(t, at, workers=2) for t in tasks] for at in (10.0, 14.0))
    where = {"ps:0": "a", "worker:0": "a", "worker:1": "b"}
    plan = LayoutComparison(PUBLISHED[0], job)
    runner = JobRunner.__new__(JobRunner)
    within = result_of(before, after, plan, job, dict.fromkeys(tasks, "a"), runner)
    assert within.between_nodes_mb_per_s == 0
    across = result_of(before, after, plan, job, where, runner)
    assert across.between_nodes_mb_per_s == pytest.approx(10 * STEP_BYTES / 1e6)
    assert across.steps_per_s == pytest.approx(20)


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
