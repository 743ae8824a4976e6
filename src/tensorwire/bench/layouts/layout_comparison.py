"""The published experiment, both layouts of a case on one model, with more measurements.

A side is a layout with a placement of variables. Each round runs every side once, as a job that is
started, observed while it trains, and removed. The order is A B, then B A, so that a drift of the
machine's speed does not bias the result.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorwire.bench.frame.experiment import Case as MeasuredCase
from tensorwire.bench.frame.experiment import Variant as Side
from tensorwire.bench.frame.experiment import measure
from tensorwire.bench.frame.record import Record
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.tasks import Unwatched, Watcher
from tensorwire.bench.layouts.job_runner import JobRunner, RunningJob
from tensorwire.bench.layouts.layout_result import LayoutResult, TaskLoad
from tensorwire.cluster import is_ps
from tensorwire.doctor.diagnose import diagnose
from tensorwire.doctor.evidence import JobEvidence
from tensorwire.doctor.job_evidence import HostFacts, evidence_of
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s.job import CONFIG_FOLDER, Job, Script
from tensorwire.k8s.layout import COLOCATED, LAYOUTS, JobCase
from tensorwire.metrics.rates import job_rates
from tensorwire.metrics.task_metrics import IN, TaskMetrics, short_name

COMMAND = "k8s compare"

_FIRST_STEPS = 10
"""Uncounted first steps of each worker, which create all variables and lazy resources."""


@dataclass(frozen=True)
class LayoutComparison:
    """The plan of a comparison of layouts."""

    case: JobCase
    job: Job
    """The job; each side sets its layout and its placement."""
    placements: Sequence[str] = ("round_robin",)
    rounds: int = 1
    seconds: float = 20.0
    """The time for which each training job is observed."""
    up_within_s: float = 900.0
    """The time that the tasks of a job may take until they train."""

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return len(self.arrangements) * self.rounds

    @property
    def arrangements(self) -> list[tuple[str, str]]:
        """The sides of the comparison: pairs of a layout and a placement of variables."""
        return [(layout, placement) for placement in self.placements for layout in LAYOUTS]

    def side_name(self, layout: str, placement: str) -> str:
        """The name of a side in tables and ratios."""
        return layout if len(self.placements) == 1 else f"{layout} {placement}"


def hot_model() -> Script:
    """The default script, with one big variable."""
    path = Path(__file__).with_name("hot_model.py")
    return Script(f"{CONFIG_FOLDER}/{path.name}", path.read_text(encoding="utf-8"))


def workers_per_node(case: JobCase, workers: int | None) -> int:
    """The number of workers per node that keeps the case's number of servers with fewer workers.

    Raises:
        UsageError: the case has fewer workers, or they cannot be divided among its servers.
    """
    if workers is None:
        return case.workers_per_node
    if workers > case.workers:
        raise UsageError(
            f"--workers must be at most {case.workers}, the number of case {case.name}"
        )
    servers = -(-case.workers // case.workers_per_node)
    per_node = -(-workers // servers)
    if -(-workers // per_node) != servers:
        raise UsageError(
            f"case {case.name} has {servers} servers for its workers: --workers must be a multiple "
            f"of {servers}"
        )
    return per_node


class LayoutSide(Side[None, LayoutResult]):
    """A layout with a placement of variables; a block is a job that is run and observed."""

    def __init__(
        self,
        layout: str,
        placement: str,
        plan: LayoutComparison,
        runner: JobRunner,
        watcher: Watcher,
    ) -> None:
        self.name = plan.side_name(layout, placement)
        self._job = dataclasses.replace(plan.job, layout=layout, placement=placement)
        self._plan = plan
        self._runner = runner
        self._watcher = watcher
        self._observed: list[LayoutResult] = []

    def block(self, what: None, steps: int | None) -> list[float]:
        """Runs a job; returns one mean: seconds per step, over all workers together."""
        plan, watcher = self._plan, self._watcher
        name = f"round {len(self._observed) + 1} of {plan.rounds}, {self.name}"
        watcher.activity(f"{name}: starting {len(list(self._job.cluster.tasks()))} tasks")
        with self._runner.run(self._job) as running:
            self._observed.append(self._observe(running, name))
            watcher.activity(f"{name}: ending")
        self.tensorflow = self._runner.tensorflow
        watcher.advance()
        return [1.0 / self._observed[-1].steps_per_s]

    def result(self, case: MeasuredCase[None], rounds: Rounds) -> LayoutResult:
        """The median of the steps over the rounds; all else is from the round with median speed."""
        by_speed = sorted(self._observed, key=lambda each: each.steps_per_s)
        rate = statistics.median(each.steps_per_s for each in by_speed)
        return dataclasses.replace(by_speed[len(by_speed) // 2], steps_per_s=rate)

    def _observe(self, running: RunningJob, name: str) -> LayoutResult:
        plan, job, watcher = self._plan, self._job, self._watcher
        _wait_until_it_trains(
            running, job, plan.up_within_s, lambda t: watcher.activity(f"{name}: {t}")
        )
        watcher.activity(f"{name}: observing it for {plan.seconds:g} s")
        before = running.metrics()
        running.go_on(plan.seconds)
        after = running.metrics()
        expected = {f"{task.job}:{task.index}" for task, _ in job.cluster.tasks()}
        if missing := expected - {each.name for each in before} & {each.name for each in after}:
            raise TensorwireError(
                f"{', '.join(sorted(missing))} served no metrics during the observation"
            )
        return result_of(before, after, plan, job, running.node_of, self._runner)


def run(plan: LayoutComparison, runner: JobRunner, watcher: Watcher) -> Record[LayoutResult]:
    """Runs every layout under every placement `plan.rounds` times.

    Raises:
        TensorwireError: a job failed, did not start in time, or ended before it was observed.
    """
    sides = [
        LayoutSide(layout, placement, plan, runner, watcher)
        for layout, placement in plan.arrangements
    ]
    cases = [MeasuredCase(plan.case.name, None, [None] * plan.rounds)]
    pairs = _pairs(plan)
    record = measure(COMMAND, sides, cases, Unwatched(), pairs=pairs, back_and_forth=True)
    return dataclasses.replace(record, lab=runner.lab)  # known only after the jobs have run


def _wait_until_it_trains(
    running: RunningJob, job: Job, within_s: float, say: Callable[[str], None]
) -> None:
    """Returns when every training task has completed its first steps."""
    deadline = time.monotonic() + within_s
    expected = sum(1 for _ in job.cluster.tasks())
    roles = ("chief", "worker") if job.api == "estimator" else ("worker",)
    training = sum(len(job.cluster.jobs[role]) for role in roles)
    while True:
        running.go_on(running.poll_s)
        found = running.metrics()
        ready = sum(each.name.partition(":")[0] in roles and _trains(each) for each in found)
        if len(found) == expected and ready == training:
            return
        state = f"{len(found)} of {expected} tasks are up, {ready} of {training} train"
        say(state)
        if time.monotonic() > deadline:
            why = running.troubles()
            raise TensorwireError(
                f"after {within_s:g} s {state.replace(',', ' and')}" + (f": {why}" if why else "")
            )


def _trains(task: TaskMetrics) -> bool:
    """True if the task has completed its first steps."""
    from_ps = (t.tensors for t in task.tensors if t.direction == IN and is_ps(short_name(t.peer)))
    return max(task.eager_calls, max(from_ps, default=0)) >= _FIRST_STEPS


def result_of(
    before: Sequence[TaskMetrics],
    after: Sequence[TaskMetrics],
    plan: LayoutComparison,
    job: Job,
    node_of: Mapping[str, str],
    runner: JobRunner,
) -> LayoutResult:
    """One job, from two readings of the metrics of all its tasks."""
    nodes = sorted(set(node_of.values()))
    link, cores = runner.link_mb_per_s, runner.cores_of_node
    known = HostFacts(
        links_mb_per_s={} if link is None else dict.fromkeys(nodes, link),
        hosts=node_of,
        cores={} if cores is None else dict.fromkeys(nodes, cores),
    )
    source = f"metrics of {len(after)} tasks on {len(nodes)} node(s)"
    evidence = evidence_of(before, after, source, known)
    found = evidence.job
    assert found is not None
    limits = {group.role: job.resources(group).cores for group in job.groups}
    rates = job_rates(before, after)
    return LayoutResult(
        layout=job.layout,
        placement=job.placement,
        protocol=job.protocol,
        case=plan.case.name,
        case_workers=plan.case.workers,
        workers=job.workers,
        ps=job.ps,
        nodes=len(nodes),
        seconds=plan.seconds,
        steps_per_s=_steps_per_s(found, before, after),
        between_nodes_mb_per_s=sum(t.tx_bytes / t.seconds for t in found.tasks) / 1e6,
        tasks=tuple(
            TaskLoad(
                task=each.task,
                node=node_of[each.task],
                cores=each.cores,
                cpu_limit=limits[each.job],
                memory_mb=each.rss_bytes / 1e6,
                in_mb_per_s=each.in_bytes_per_s / 1e6,
                out_mb_per_s=each.out_bytes_per_s / 1e6,
            )
            for each in rates.tasks
        ),
        step=None if found.split is None else found.split.words,
        verdicts=diagnose(evidence).findings,
    )


def _steps_per_s(
    job: JobEvidence, before: Sequence[TaskMetrics], after: Sequence[TaskMetrics]
) -> float:
    """Steps of all workers; with a coordinator, calls on the busiest ps, as in `k8s status`."""
    if job.steps:
        return job.steps_per_s
    earlier = {each.name: each for each in before}
    moved = [now.since(earlier[now.name]) for now in after if is_ps(now.name)]
    rates = [(each.run_graphs + each.eager_calls) / (each.clock_us / 1e6) for each in moved]
    if not max(rates, default=0.0) > 0:
        raise TensorwireError("no step was completed during the observation: increase --seconds")
    return max(rates)


def _pairs(plan: LayoutComparison) -> list[tuple[str, str]]:
    """Compares the layouts under each placement, and the placements under each layout."""
    name = plan.side_name
    first, *others = plan.placements
    pairs = [
        (name(layout, placement), name(COLOCATED, placement))
        for placement in plan.placements
        for layout in LAYOUTS
        if layout != COLOCATED
    ]
    pairs += [(name(layout, other), name(layout, first)) for layout in LAYOUTS for other in others]
    return pairs
