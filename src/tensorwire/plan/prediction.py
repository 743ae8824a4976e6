"""Predictions: what is asked, the simulation that answers, and what the answer says."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tensorwire.errors import UsageError
from tensorwire.placement.plan import STRATEGIES, PlacementPlan
from tensorwire.plan import loads
from tensorwire.plan.bounds import most_steps_per_s
from tensorwire.plan.cluster import Shape
from tensorwire.plan.costs import EXACT, Calibration, Costs
from tensorwire.plan.job import SYNC, JobModel
from tensorwire.plan.loads import MOST_CLASSES, PsLoad, group_ps, is_small, traffic_of
from tensorwire.plan.simulation import Simulated, Simulation, StepParts
from tensorwire.plan.worker_step import CORES, TASK_CORES, THREADS, Resource, WorkerSteps


@dataclass(frozen=True)
class Utilization:
    """The utilization of a resource that has a limit."""

    name: str
    """"ps:0 cores", "ps:0 link out", "workers link in", "the machine's cores", "input"."""
    share: float
    """0 to 1."""


@dataclass(frozen=True)
class PredictedLoad:
    """A task, or several that are alike."""

    task: str
    """"ps:0", or the first of those that are alike."""
    count: int
    cores: float
    """Busy, on average."""
    out_bytes_per_s: float
    in_bytes_per_s: float


@dataclass(frozen=True)
class Prediction:
    """The prediction for one side of one cluster."""

    side: str
    """A side of `costs.SIDES`."""
    placement: str
    layout: str
    workers: int
    ps: int
    steps_per_s: float
    """Asynchronous: steps of all workers together. Synchronous: steps of all as one."""
    examples_per_s: float
    step: StepParts
    tasks: Sequence[PredictedLoad]
    uses: Sequence[Utilization]
    """The busiest first."""
    bound_steps_per_s: float
    """The upper bound: the busiest resource busy all the time."""


def uses(worker_steps: WorkerSteps, simulated: Simulated) -> list[Utilization]:
    """The busiest first; of what only workers use, the mean of each kind."""
    named: dict[str, list[float]] = {}
    for resource, share in simulated.busy.items():
        named.setdefault(_name(worker_steps.shape, resource), []).append(share)
    job, workers = worker_steps.job, len(worker_steps.workers)
    if job.input_examples_per_s:
        batches_per_s = job.input_examples_per_s / job.batch_size
        named["input"] = [simulated.worker_steps_per_s / workers / batches_per_s]
    means = [Utilization(name, min(1.0, sum(each) / len(each))) for name, each in named.items()]
    return sorted(means, key=lambda use: (-use.share, use.name))


def tasks(worker_steps: WorkerSteps, simulated: Simulated) -> list[PredictedLoad]:
    """Every ps, those that are alike as one, and the workers in the mean."""
    rate, workers = simulated.worker_steps_per_s, len(worker_steps.workers)
    found = []
    members: dict[PsLoad, list[int]] = {}
    for each in worker_steps.groups.classes:
        members.setdefault(each.load, []).extend(each.members)
    for load, alike in members.items():
        cpu_s = load.pull_cpu_s(worker_steps.costs) + load.push_cpu_s(worker_steps.costs)
        found.append(
            PredictedLoad(
                f"ps:{min(alike)}",
                len(alike),
                rate * cpu_s,
                rate * load.pulled.bytes,
                rate * (load.asked.bytes + load.pushed.bytes),
            )
        )
    busy = {ps for each in worker_steps.groups.classes for ps in each.members}
    idle = [ps for ps in range(worker_steps.shape.ps) if ps not in busy]
    if idle:
        found.append(PredictedLoad(f"ps:{idle[0]}", len(idle), 0.0, 0.0, 0.0))
    step, each_s = worker_steps.step, rate / workers
    mean_cpu_s = sum(map(worker_steps.worker_cpu_s, range(workers))) / workers
    found.append(
        PredictedLoad(
            "worker:0",
            workers,
            each_s * mean_cpu_s,
            each_s * (step.asked.bytes + step.pushed.bytes),
            each_s * step.pulled.bytes,
        )
    )
    return found


def _name(shape: Shape, resource: Resource) -> str:
    """ "ps:3 link in", "ps:3 and workers cores", "workers link out"."""
    kind, host = resource.kind, resource.index
    if kind == CORES and shape.machines == 1:
        return "the machine's cores"
    if kind in (THREADS, TASK_CORES):
        return f"ps:{host} {kind}"
    if host >= shape.ps:
        return f"workers {kind}"
    return f"ps:{host} and workers {kind}" if host in shape.worker_hosts else f"ps:{host} {kind}"


# Enough for a mean that another seed changes by a few percent.
_WORKER_STEPS = 3000
_FEWEST_STEPS, _MOST_STEPS = 16, 200


def steps_of(workers: int) -> int:
    """The number of steps of each worker in a prediction."""
    return max(_FEWEST_STEPS, min(_MOST_STEPS, _WORKER_STEPS // workers))


def predict(
    job: JobModel,
    shape: Shape,
    side: str,
    costs: Costs,
    plan: PlacementPlan,
    *,
    steps: int | None = None,
    seed: int = 0,
    on_step: Callable[[], None] = lambda: None,
) -> Prediction:
    """Simulates the job, `steps` steps of each worker; the same seed gives the same prediction.

    Args:
        side: the name of `costs` in a calibration.
        plan: of the job's variables, for as many ps as the cluster has.
        on_step: called at each step of each worker.
    """
    worker_steps = _worker_steps(job, shape, costs, plan)
    workers = len(worker_steps.workers)
    simulation = Simulation(worker_steps, seed)
    simulated = simulation.run(steps or steps_of(workers), on_step)
    at_most = _steps_per_s(worker_steps, simulation.most_steps_per_s)
    return Prediction(
        side=side,
        placement=plan.strategy,
        layout=shape.layout,
        workers=workers,
        ps=shape.ps,
        # What was under way when counting began may let it count a little too much.
        steps_per_s=min(simulated.steps_per_s, at_most),
        examples_per_s=simulated.worker_steps_per_s * job.batch_size,
        step=simulated.step,
        tasks=tasks(worker_steps, simulated),
        uses=uses(worker_steps, simulated),
        bound_steps_per_s=at_most,
    )


def _worker_steps(job: JobModel, shape: Shape, costs: Costs, plan: PlacementPlan) -> WorkerSteps:
    shown = loads.loads(job, plan)
    if not is_small(shape):
        shown = loads.alike(shown, costs, MOST_CLASSES)
    return WorkerSteps(job, shape, costs, group_ps(shape, shown))


def _steps_per_s(worker_steps: WorkerSteps, worker_steps_per_s: float) -> float:
    """Steps per second of the job: in synchronous training, the workers' steps make one."""
    if worker_steps.job.training != SYNC:
        return worker_steps_per_s
    return worker_steps_per_s / len(worker_steps.workers)


@dataclass(frozen=True)
class PredictionRequest:
    """The input of one prediction."""

    job: JobModel
    calibration: Calibration
    side: str
    placement: str
    shape: Shape
    seed: int = 0
    steps: int | None = None
    """Simulated steps of each worker; None: enough for a stable rate."""

    @property
    def worker_steps(self) -> int:
        """The approximate most steps that a simulation takes, for progress."""
        return (self.steps or steps_of(self.shape.workers)) * self.shape.workers

    def answer(self, on_step: Callable[[], None] = lambda: None) -> Prediction:
        """Simulates it.

        Raises:
            UsageError: the calibration lacks the side, or nobody measured the job with its
                rewrites.
        """
        job = on_side(self.job, self.side)
        plan = placed(job, self.placement, self.shape.ps)
        steps, seed = self.steps, self.seed
        return predict(
            job, self.shape, self.side, self._costs(), plan, steps=steps, seed=seed, on_step=on_step
        )

    def bound(self) -> float:
        """Steps a second that the answer does not exceed, found at once, without a simulation.

        Raises:
            UsageError: as `answer`.
        """
        job = on_side(self.job, self.side)
        plan = placed(job, self.placement, self.shape.ps)
        worker_steps = _worker_steps(job, self.shape, self._costs(), plan)
        return _steps_per_s(worker_steps, most_steps_per_s(worker_steps))

    @property
    def knows_exact(self) -> bool:
        """Whether it can be answered for the job with all exact rewrites."""
        return self.job.exact is not None and EXACT in self.calibration.costs

    def _costs(self) -> Costs:
        costs = self.calibration.costs.get(self.side)
        if costs is None:
            known = ", ".join(self.calibration.costs)
            raise UsageError(f"the calibration has no costs of {self.side}: it has {known}")
        return costs

    def having(self, **fields: object) -> PredictionRequest:
        """The same with another job, side, placement or shape, or fields of the shape."""
        own = {name: value for name, value in fields.items() if name in self.__dataclass_fields__}
        shape = {name: value for name, value in fields.items() if name not in own}
        changed: PredictionRequest = replace(self, **own)  # type: ignore[arg-type]
        return replace(changed, shape=replace(changed.shape, **shape)) if shape else changed  # type: ignore[arg-type]


def on_side(job: JobModel, side: str) -> JobModel:
    """The job as a side has it: with all exact rewrites it sends and computes less.

    Raises:
        UsageError: the job was not measured with these rewrites.
    """
    if side != EXACT:
        return job
    if job.exact is None:
        raise UsageError(
            f"what the exact rewrites save for {job.name} is not known: it is measured "
            "by `tensorwire plan calibrate`, for ctr and flights"
        )
    return job.exact


@functools.lru_cache(maxsize=256)
def placed(job: JobModel, placement: str, ps: int) -> PlacementPlan:
    """The job's variables on so many ps."""
    return STRATEGIES[placement]([each.variable for each in job.variables], ps, traffic_of(job))


_WORTH_A_PROCESS = 10_000
"""Steps of workers: simulating them takes about a second, and starting a process half of one."""


def answers(
    questions: Sequence[PredictionRequest], on_steps: Callable[[int], None] = lambda steps: None
) -> list[Prediction]:
    """The answer to each question, on as many cores as there are where that is worth processes.

    `on_steps` is called with the number of steps that have been simulated since its last call.

    Raises:
        UsageError: as `PredictionRequest.answer`.
    """
    processes = min(len(questions), len(os.sched_getaffinity(0)))
    if processes < 2 or min(each.worker_steps for each in questions) < _WORTH_A_PROCESS:
        return [each.answer(lambda: on_steps(1)) for each in questions]
    found = []
    # Spawned: a progress bar has a thread, which a fork would not have.
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _leave_interrupts_to_the_parent) as pool:
        for question, answer in zip(questions, pool.imap(_answer, questions), strict=True):
            found.append(answer)
            on_steps(question.worker_steps)
    return found


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _answer(question: PredictionRequest) -> Prediction:
    return question.answer()
