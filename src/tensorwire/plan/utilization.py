"""How busy a simulation found what has a limit, and what each task has of it, under their names."""

from __future__ import annotations

from tensorwire.plan.cluster import Cluster
from tensorwire.plan.loads import PsLoad
from tensorwire.plan.prediction import PredictedLoad, Utilization
from tensorwire.plan.simulation import Simulated
from tensorwire.plan.worker_step import CORES, TASK_CORES, THREADS, Resource, WorkerSteps

_NAMED = 3


def uses(worker_steps: WorkerSteps, simulated: Simulated) -> list[Utilization]:
    """The busiest first; of what only workers use, the mean of each kind."""
    named: dict[str, list[float]] = {}
    for resource, share in simulated.busy.items():
        named.setdefault(_name(worker_steps, resource), []).append(share)
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
    idle = [ps for ps in range(len(worker_steps.cluster.ps)) if ps not in busy]
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


def _name(worker_steps: WorkerSteps, resource: Resource) -> str:
    cluster, kind = worker_steps.cluster, resource.kind
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
