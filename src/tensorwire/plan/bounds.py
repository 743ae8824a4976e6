"""Bounds without a simulation: one worker's step on an idle cluster, and the cluster's limit."""

from __future__ import annotations

import math
from collections import defaultdict

from tensorwire.plan.worker_step import CORES, Resource, WorkerSteps, WorkItem

_MOST_STEPS = 20
"""Iterations until pauses and their bursts no longer change; usually two suffice."""


def alone_s(worker_steps: WorkerSteps, worker: int) -> float:
    """A step of that worker when it is the only one, and waits for no input: exact."""
    worker_step = worker_steps.workers[worker]
    phases = [
        [*phase.parts, *worker_steps.worker_cpu(worker, phase)] for phase in worker_step.phases
    ]
    now_s = step_s = longest_s = 0.0
    idle: dict[Resource, tuple[float, float]] = {}
    if worker_steps.shape.link_burst_bytes:
        # Small steps live on the first burst for long, and then on what the link carries.
        needed = demands(worker_steps, worker)
        longest_s = max(
            (w / each.capacity for each, w in needed.items() if worker_steps.burst_bytes(each)),
            default=0.0,
        )
    for _ in range(_MOST_STEPS if longest_s else 1):
        began_s, before_s = now_s, step_s
        now_s += worker_step.latency_s
        for parts in phases:
            now_s = max((_done_s(worker_steps, part, now_s, idle) for part in parts), default=now_s)
        step_s = max(now_s - began_s, longest_s)
        if math.isclose(step_s, before_s, rel_tol=1e-6):
            break
    return step_s


def _done_s(
    worker_steps: WorkerSteps,
    part: WorkItem,
    now_s: float,
    idle: dict[Resource, tuple[float, float]],
) -> float:
    """When a part that begins now is done. `idle`: since when a resource is, and what it then had
    left of the burst that it does at once."""
    capacity = min(
        each.capacity / part.count for each in (part.resource, part.beside) if each is not None
    )
    burst = worker_steps.burst_bytes(part.resource)
    since_s, left = idle.get(part.resource, (now_s, burst))
    credit = min(burst, left + max(0.0, now_s - since_s) * part.resource.capacity)
    at_once = min(part.work, credit / part.count)
    done_s = now_s + (part.work - at_once) / min(part.limit, capacity)
    idle[part.resource] = done_s, credit - at_once * part.count
    return done_s


def demands(worker_steps: WorkerSteps, worker: int) -> dict[Resource, float]:
    """Work at each resource for a step of that worker; of alike ones, at one of them."""
    worker_step = worker_steps.workers[worker]
    parts = [
        *(part for phase in worker_step.phases for part in phase.parts),
        *(p for phase in worker_step.phases for p in worker_steps.worker_cpu(worker, phase)),
    ]
    work: dict[Resource, float] = defaultdict(float)
    for part in parts:
        whole = part.work * part.count
        work[part.resource] += whole
        later = max(0.0, whole - worker_steps.burst_bytes(part.resource)) / part.count
        if part.beside is not None and (in_turn := worker_steps.in_turn(part, later)) > 0:
            work[part.beside] += in_turn * part.count
    return work


def most_steps_per_s(worker_steps: WorkerSteps) -> float:
    """Steps of all workers together that the cluster cannot exceed.

    No worker is faster than alone or than its input, and no resource does more than it can: those
    that want least of it at their fastest, and the others with what is left.
    """
    job, workers = worker_steps.job, range(len(worker_steps.workers))
    input_s = job.batch_size / job.input_examples_per_s if job.input_examples_per_s else 0.0
    fastest = [1 / max(alone_s(worker_steps, worker), input_s) for worker in workers]
    wanted: dict[Resource, dict[int, float]] = defaultdict(dict)
    for worker in workers:
        for resource, work in demands(worker_steps, worker).items():
            wanted[resource][worker] = work
    shared = [
        _most(
            _capacity(worker_steps, resource), [(of[worker], fastest[worker]) for worker in workers]
        )
        for resource, of in wanted.items()
        if len(of) == len(workers)
    ]
    # A machine or a link that only some use bounds those; all of a kind together bound everybody.
    apart: dict[str, float] = defaultdict(float)
    users: dict[str, int] = defaultdict(int)
    for resource, of in wanted.items():
        if len(of) < len(workers):
            of_users = [(work, fastest[worker]) for worker, work in of.items()]
            apart[resource.kind] += _most(_capacity(worker_steps, resource), of_users)
            users[resource.kind] += len(of)
    complete = [rate for kind, rate in apart.items() if users[kind] == len(workers)]
    return min(sum(fastest), *shared, *complete)


def _most(capacity: float, users: list[tuple[float, float]]) -> float:
    """Steps a second of users (work for a step, steps a second at most) of one resource."""
    rate = 0.0
    for work, most in sorted(users):
        rate += min(most, capacity / work)
        capacity -= min(most * work, capacity)
    return rate


def _capacity(worker_steps: WorkerSteps, resource: Resource) -> float:
    factor = worker_steps.costs.crowded_factor if resource.kind == CORES else 1.0
    return resource.capacity / min(1.0, factor)
