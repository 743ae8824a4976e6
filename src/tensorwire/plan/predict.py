"""One prediction: a job with its variables placed, on a cluster, over one protocol."""

from __future__ import annotations

from collections.abc import Callable

from tensorwire.errors import UsageError
from tensorwire.placement.plan import PlacementPlan
from tensorwire.plan import loads
from tensorwire.plan.bounds import most_steps_per_s
from tensorwire.plan.cluster import Cluster
from tensorwire.plan.costs import Costs
from tensorwire.plan.job import SYNC, JobModel
from tensorwire.plan.prediction import Prediction
from tensorwire.plan.ps_groups import MOST_CLASSES, group_ps, is_small
from tensorwire.plan.simulation import Simulation
from tensorwire.plan.utilization import tasks, uses
from tensorwire.plan.worker_step import WorkerSteps

# Enough for a mean that another seed changes by a few percent.
_WORKER_STEPS = 3000
_FEWEST_STEPS, _MOST_STEPS = 16, 200


def steps_of(workers: int) -> int:
    """How many steps of each worker a prediction takes."""
    return max(_FEWEST_STEPS, min(_MOST_STEPS, _WORKER_STEPS // workers))


def predict(
    job: JobModel,
    cluster: Cluster,
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

    Raises:
        UsageError: the job cannot be on that cluster.
    """
    worker_steps = _recipes(job, cluster, costs, plan)
    workers = len(worker_steps.workers)
    simulation = Simulation(worker_steps, seed)
    simulated = simulation.run(steps or steps_of(workers), on_step)
    at_most = _steps_per_s(worker_steps, simulation.most_steps_per_s)
    return Prediction(
        side=side,
        placement=plan.strategy,
        layout=cluster.layout,
        workers=workers,
        ps=len(cluster.ps),
        # What was under way when counting began may let it count a little too much.
        steps_per_s=min(simulated.steps_per_s, at_most),
        examples_per_s=simulated.worker_steps_per_s * job.batch_size,
        step=simulated.step,
        tasks=tasks(worker_steps, simulated),
        uses=uses(worker_steps, simulated),
        bound_steps_per_s=at_most,
    )


def bound(job: JobModel, cluster: Cluster, costs: Costs, plan: PlacementPlan) -> float:
    """Steps a second that no prediction of it exceeds, without a simulation.

    Raises:
        UsageError: as `predict`.
    """
    worker_steps = _recipes(job, cluster, costs, plan)
    return _steps_per_s(worker_steps, most_steps_per_s(worker_steps))


def _recipes(job: JobModel, cluster: Cluster, costs: Costs, plan: PlacementPlan) -> WorkerSteps:
    workers = len(cluster.workers)
    if job.training == SYNC and not 0 <= job.backup_workers < workers:
        raise UsageError(f"of {workers} workers {job.backup_workers} cannot be backup workers")
    shown = loads.loads(job, plan)
    if not is_small(cluster):
        shown = loads.alike(shown, costs, MOST_CLASSES)
    return WorkerSteps(job, cluster, costs, group_ps(cluster, shown))


def _steps_per_s(worker_steps: WorkerSteps, worker_steps_per_s: float) -> float:
    """Of the job: in synchronous training the workers' steps make one."""
    if worker_steps.job.training != SYNC:
        return worker_steps_per_s
    return worker_steps_per_s / (len(worker_steps.workers) - worker_steps.job.backup_workers)
