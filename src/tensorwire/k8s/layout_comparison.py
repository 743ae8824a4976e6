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

from tensorwire.doctor import job_evidence as look
from tensorwire.doctor import job_usage as of_job
from tensorwire.doctor.diagnose import diagnose
from tensorwire.doctor.evidence import Diagnosis, Evidence, JobEvidence
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s.job import CONFIG_FOLDER, Job, Script
from tensorwire.k8s.layout import COLOCATED, LAYOUTS, JobCase
from tensorwire.k8s.layout_result import LayoutResult, TaskLoad, Verdict
from tensorwire.k8s.stage import RunningJob, Stage
from tensorwire.k8s.state import counts
from tensorwire.measure.experiment import Case as MeasuredCase
from tensorwire.measure.experiment import Side, measure
from tensorwire.measure.record import Record
from tensorwire.measure.statistics import Rounds
from tensorwire.measure.task_processes import Unwatched, Watcher
from tensorwire.metrics.task_metrics import IN, TaskMetrics, short_name

COMMAND = "k8s compare"

_FIRST_STEPS = 10
"""Uncounted first steps of each worker, which create all variables and lazy resources."""
_POLL_S = 0.5


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


@dataclass(frozen=True)
class Look:
    """The observation of one training job."""

    steps_per_s: float
    loads: Sequence[TaskLoad]
    between_nodes_mb_per_s: float
    step: str | None
    diagnosis: Diagnosis


class LayoutSide(Side[None, LayoutResult]):
    """A layout with a placement of variables; a block is a job that is run and observed."""

    def __init__(
        self, layout: str, placement: str, plan: LayoutComparison, stage: Stage, watcher: Watcher
    ) -> None:
        self.name = plan.side_name(layout, placement)
        self._layout = layout
        self._placement = placement
        self._plan = plan
        self._stage = stage
        self._watcher = watcher
        self._looks: list[Look] = []

    def block(self, what: None, steps: int | None) -> list[float]:
        """Runs a job; returns one mean: seconds per step, over all workers together."""
        plan, watcher = self._plan, self._watcher
        name = f"round {len(self._looks) + 1} of {plan.rounds}, {self.name}"
        job = dataclasses.replace(plan.job, layout=self._layout, placement=self._placement)
        watcher.activity(f"{name}: starting {len(list(job.cluster.tasks()))} tasks")
        with self._stage.run(job) as running:
            seen = _watch(running, job, plan, self._stage, name, watcher)
            watcher.activity(f"{name}: ending")
        self._looks.append(seen)
        self.tensorflow = self._stage.tensorflow
        watcher.advance()
        return [1.0 / seen.steps_per_s]

    def result(self, case: MeasuredCase[None], rounds: Rounds) -> LayoutResult:
        """The median of the steps over the rounds; all else is from the round with median speed."""
        plan = self._plan
        by_speed = sorted(self._looks, key=lambda each: each.steps_per_s)
        middle = by_speed[len(by_speed) // 2]
        return LayoutResult(
            layout=self._layout,
            placement=self._placement,
            protocol=plan.job.protocol,
            case=plan.case.name,
            case_workers=plan.case.workers,
            workers=plan.job.workers,
            ps=plan.job.ps,
            nodes=len({load.node for load in middle.loads}),
            seconds=plan.seconds,
            steps_per_s=statistics.median(each.steps_per_s for each in self._looks),
            between_nodes_mb_per_s=middle.between_nodes_mb_per_s,
            tasks=tuple(middle.loads),
            step=middle.step,
            verdicts=tuple(
                Verdict(
                    rule=each.rule,
                    title=each.title,
                    cost=each.cost,
                    confidence=each.confidence,
                    change=each.change,
                    evidence=tuple(each.evidence),
                )
                for each in middle.diagnosis.findings
            ),
        )


def run(plan: LayoutComparison, stage: Stage, watcher: Watcher) -> Record[LayoutResult]:
    """Runs every layout under every placement `plan.rounds` times.

    Raises:
        TensorwireError: a job failed, did not start in time, or ended before it was observed.
    """
    sides = [
        LayoutSide(layout, placement, plan, stage, watcher)
        for layout, placement in plan.arrangements
    ]
    cases = [MeasuredCase(plan.case.name, None, [None] * plan.rounds)]
    pairs = _pairs(plan)
    record = measure(COMMAND, sides, cases, Unwatched(), pairs=pairs, back_and_forth=True)
    return dataclasses.replace(record, lab=stage.document)  # known only after the jobs have run


def _watch(
    running: RunningJob, job: Job, plan: LayoutComparison, stage: Stage, name: str, watcher: Watcher
) -> Look:
    _until_it_trains(running, job, plan.up_within_s, lambda t: watcher.activity(f"{name}: {t}"))
    watcher.activity(f"{name}: observing it for {plan.seconds:g} s")
    before = running.metrics()
    _let_go_on(running, plan.seconds)
    after = running.metrics()
    expected = {f"{task.job}:{task.index}" for task, _ in job.cluster.tasks()}
    if missing := expected - {each.name for each in before} & {each.name for each in after}:
        raise TensorwireError(
            f"{', '.join(sorted(missing))} served no metrics during the observation"
        )
    return look_at(before, after, job, running.node_of, stage)


def _until_it_trains(
    running: RunningJob, job: Job, within_s: float, say: Callable[[str], None]
) -> None:
    """Returns when every training task has completed its first steps."""
    deadline = time.monotonic() + within_s
    expected = sum(1 for _ in job.cluster.tasks())
    training = sum(len(job.cluster.jobs[role]) for role in _training_roles(job))
    while True:
        _let_go_on(running, _POLL_S)
        found = running.metrics()
        ready = [each for each in found if _trains(each, job)]
        if len(found) == expected and len(ready) == training:
            return
        say(f"{len(found)} of {expected} tasks are up, {len(ready)} of {training} train")
        if time.monotonic() > deadline:
            why = running.troubles()
            raise TensorwireError(
                f"after {within_s:g} s {len(found)} of {expected} tasks are up and "
                f"{len(ready)} of {training} train" + (f": {why}" if why else "")
            )


def _let_go_on(running: RunningJob, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        running.go_on()
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _POLL_S))


def _trains(task: TaskMetrics, job: Job) -> bool:
    """True if the task trains and has completed its first steps."""
    if task.name.partition(":")[0] not in _training_roles(job):
        return False
    from_ps = (
        each.tensors
        for each in task.tensors
        if each.direction == IN and short_name(each.peer).startswith("ps:")
    )
    return max(task.eager_calls, max(from_ps, default=0)) >= _FIRST_STEPS


def _training_roles(job: Job) -> tuple[str, ...]:
    return ("chief", "worker") if job.api == "estimator" else ("worker",)


def look_at(
    before: Sequence[TaskMetrics],
    after: Sequence[TaskMetrics],
    job: Job,
    node_of: Mapping[str, str],
    stage: Stage,
) -> Look:
    """An observation from two readings of the metrics of all tasks of a job."""
    nodes = sorted(set(node_of.values()))
    link = stage.link_mb_per_s
    given = look.Surroundings(
        links_mb_per_s={} if link is None else dict.fromkeys(nodes, link),
        hosts=node_of,
        cores={} if stage.cores_of_node is None else dict.fromkeys(nodes, stage.cores_of_node),
    )
    source = f"metrics of {len(after)} tasks on {len(nodes)} node(s)"
    evidence = Evidence(
        job=look.job_of(before, after, source, given),
        placement=look.placement_of(after),
        sessions=look.sessions_of(after, source),
    )
    earlier = {each.name: each for each in before}
    loads, crossing = [], 0.0
    for now in after:
        then = earlier[now.name]
        seconds = (now.clock_us - then.clock_us) / 1e6
        group = next(g for g in job.groups if g.role == now.name.partition(":")[0])
        loads.append(
            TaskLoad(
                task=now.name,
                node=node_of[now.name],
                cores=(now.process.cpu_s - then.process.cpu_s) / seconds,
                cpu_limit=job.resources(group).cores,
                memory_mb=now.process.rss_bytes / 1e6,
                in_mb_per_s=_moved(now, then, "in_bytes") / seconds / 1e6,
                out_mb_per_s=_moved(now, then, "out_bytes") / seconds / 1e6,
            )
        )
        crossing += _moved(now, then, "tx_bytes", _elsewhere(now.name, node_of)) / seconds / 1e6
    if evidence.job is None:
        raise TensorwireError("the tasks served no metrics of a job")
    split = of_job.typical_split(evidence.job.workers)
    return Look(
        steps_per_s=_steps_per_s(evidence.job, before, after),
        loads=loads,
        between_nodes_mb_per_s=crossing,
        step=None if split is None else of_job.split_words(split),
        diagnosis=diagnose(evidence),
    )


def _elsewhere(task: str, node_of: Mapping[str, str]) -> Callable[[str], bool]:
    return lambda peer: node_of.get(peer) != node_of[task]


def _moved(
    now: TaskMetrics,
    then: TaskMetrics,
    count: str,
    counts_peer: Callable[[str], bool] = lambda peer: True,
) -> float:
    def total(metrics: TaskMetrics) -> float:
        peers = (peer for peer in metrics.peers if counts_peer(short_name(peer.peer)))
        return float(sum(getattr(peer, count) for peer in peers))

    return max(0.0, total(now) - total(then))


def _steps_per_s(
    job: JobEvidence, before: Sequence[TaskMetrics], after: Sequence[TaskMetrics]
) -> float:
    """Steps of all workers; with a coordinator, calls on the busiest ps, as in `k8s status`."""
    if of_job.total_steps(job):
        return sum((worker.steps or 0.0) / worker.seconds for worker in job.workers)
    earlier = {each.name: each for each in before}
    rates = [
        (counts(now)[0] - counts(earlier[now.name])[0])
        / ((now.clock_us - earlier[now.name].clock_us) / 1e6)
        for now in after
        if now.name.startswith("ps:")
    ]
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
