"""How busy a simulation found what has a limit, and what each task has of it, under their names."""

from __future__ import annotations

from tensorwire.plan.cluster import Cluster
from tensorwire.plan.loads import PsLoad
from tensorwire.plan.prediction import TaskLoad, Use
from tensorwire.plan.recipe import CORES, TASK_CORES, THREADS, Recipes, Resource
from tensorwire.plan.simulation import Simulated

_NAMED = 3


def uses(recipes: Recipes, simulated: Simulated) -> list[Use]:
    """The busiest first; of what only workers use, the mean of each kind."""
    named: dict[str, list[float]] = {}
    for resource, share in simulated.busy.items():
        named.setdefault(_name(recipes, resource), []).append(share)
    job, workers = recipes.job, len(recipes.workers)
    if job.input_examples_per_s:
        batches_per_s = job.input_examples_per_s / job.batch_size
        named["input"] = [simulated.worker_steps_per_s / workers / batches_per_s]
    means = [Use(name, min(1.0, sum(each) / len(each))) for name, each in named.items()]
    return sorted(means, key=lambda use: (-use.share, use.name))


def tasks(recipes: Recipes, simulated: Simulated) -> list[TaskLoad]:
    """Every ps, those that are alike as one, and the workers in the mean."""
    rate, workers = simulated.worker_steps_per_s, len(recipes.workers)
    found = []
    members: dict[PsLoad, list[int]] = {}
    for each in recipes.sites.classes:
        members.setdefault(each.load, []).extend(each.members)
    for load, alike in members.items():
        cpu_s = load.pull_cpu_s(recipes.costs) + load.push_cpu_s(recipes.costs)
        found.append(
            TaskLoad(
                f"ps:{min(alike)}",
                len(alike),
                rate * cpu_s,
                rate * load.pulled.bytes,
                rate * (load.asked.bytes + load.pushed.bytes),
            )
        )
    busy = {ps for each in recipes.sites.classes for ps in each.members}
    idle = [ps for ps in range(len(recipes.cluster.ps)) if ps not in busy]
    if idle:
        found.append(TaskLoad(f"ps:{idle[0]}", len(idle), 0.0, 0.0, 0.0))
    step, each_s = recipes.step, rate / workers
    mean_cpu_s = sum(map(recipes.worker_cpu_s, range(workers))) / workers
    found.append(
        TaskLoad(
            "worker:0",
            workers,
            each_s * mean_cpu_s,
            each_s * (step.asked.bytes + step.pushed.bytes),
            each_s * step.pulled.bytes,
        )
    )
    return found


def _name(recipes: Recipes, resource: Resource) -> str:
    cluster, kind = recipes.cluster, resource.kind
    if kind in (THREADS, TASK_CORES):
        return f"ps:{resource.index} {kind}"
    if kind == CORES:
        if len(cluster.machines) == 1:
            return "the machine's cores"
        hosts = {i for i, host in enumerate(cluster.hosts) if host.machine == resource.index}
    else:
        hosts = {resource.index}
    return f"{_tasks_on(cluster, hosts)} {kind}"


def _tasks_on(cluster: Cluster, hosts: set[int]) -> str:
    """ "ps:3", "ps:3 and its workers", "workers"."""
    ps = [f"ps:{index}" for index, host in enumerate(cluster.ps) if host in hosts]
    if not ps:
        return "workers"
    shown = ", ".join(ps[:_NAMED]) + (" …" if len(ps) > _NAMED else "")
    return f"{shown} and workers" if any(host in hosts for host in cluster.workers) else shown
