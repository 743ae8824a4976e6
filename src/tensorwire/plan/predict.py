"""One prediction: a job with its variables placed, on a cluster, over one protocol."""

from __future__ import annotations

from collections.abc import Callable

from tensorwire.errors import UsageError
from tensorwire.placement.plan import Plan
from tensorwire.plan import loads
from tensorwire.plan.bounds import most_steps_per_s
from tensorwire.plan.cluster import Cluster
from tensorwire.plan.costs import Costs
from tensorwire.plan.job import SYNC, Job
from tensorwire.plan.prediction import Prediction
from tensorwire.plan.recipe import Recipes
from tensorwire.plan.simulation import Simulation
from tensorwire.plan.sites import MOST_CLASSES, is_small, sites
from tensorwire.plan.uses import tasks, uses

# Enough for a mean that another seed changes by a few percent.
_WORKER_STEPS = 3000
_FEWEST_STEPS, _MOST_STEPS = 16, 200


def steps_of(workers: int) -> int:
    """How many steps of each worker a prediction takes."""
    return max(_FEWEST_STEPS, min(_MOST_STEPS, _WORKER_STEPS // workers))


def predict(
    job: Job,
    cluster: Cluster,
    side: str,
    costs: Costs,
    plan: Plan,
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
    recipes = _recipes(job, cluster, costs, plan)
    workers = len(recipes.workers)
    simulation = Simulation(recipes, seed)
    simulated = simulation.run(steps or steps_of(workers), on_step)
    at_most = _steps_per_s(recipes, simulation.most_steps_per_s)
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
        tasks=tasks(recipes, simulated),
        uses=uses(recipes, simulated),
        bound_steps_per_s=at_most,
    )


def bound(job: Job, cluster: Cluster, costs: Costs, plan: Plan) -> float:
    """Steps a second that no prediction of it exceeds, without a simulation.

    Raises:
        UsageError: as `predict`.
    """
    recipes = _recipes(job, cluster, costs, plan)
    return _steps_per_s(recipes, most_steps_per_s(recipes))


def _recipes(job: Job, cluster: Cluster, costs: Costs, plan: Plan) -> Recipes:
    workers = len(cluster.workers)
    if job.training == SYNC and not 0 <= job.backup_workers < workers:
        raise UsageError(f"of {workers} workers {job.backup_workers} cannot be backup workers")
    shown = loads.loads(job, plan)
    if not is_small(cluster):
        shown = loads.alike(shown, costs, MOST_CLASSES)
    return Recipes(job, cluster, costs, sites(cluster, shown))


def _steps_per_s(recipes: Recipes, worker_steps_per_s: float) -> float:
    """Of the job: in synchronous training the workers' steps make one."""
    if recipes.job.training != SYNC:
        return worker_steps_per_s
    return worker_steps_per_s / (len(recipes.workers) - recipes.job.backup_workers)
