"""Rules for a limit in computation: the ps, or the workers."""

from __future__ import annotations

import statistics

from tensorwire.doctor.evidence import (
    Finding,
    HostUsage,
    JobEvidence,
    TaskUsage,
    cpu_shares,
    step_sentences,
    typical_split,
)
from tensorwire.doctor.rules import rule, workers
from tensorwire.units import percent

_NO_CORE_FREE = 0.9
_HARMLESS = 2  # so many threads are never too many, because they sleep when idle


@rule("polling-crowded")
def polling_crowded(job: JobEvidence) -> Finding | None:
    """Threads that poll take the cores that the work needs."""
    crowded: list[tuple[HostUsage, int, list[TaskUsage]]] = []
    for host in job.hosts:
        polling = [t for t in job.tasks if t.host == host.host and t.polling and t.reactors]
        threads = sum(task.reactors or 0 for task in polling)
        is_full = host.cpu_share is not None and host.cpu_share >= _NO_CORE_FREE
        if threads and (threads >= host.cores or is_full):
            crowded.append((host, threads, polling))
    if not crowded:
        return None
    host, threads, tasks = max(crowded, key=lambda each: each[1] / each[0].cores)
    busy = "" if host.cpu_share is None else f", which are {percent(host.cpu_share)} busy"
    return Finding(
        title=f"Polling threads take the cores of {host.host}",
        cost=min(1.0, threads / host.cores),
        evidence=(
            f"{threads} communication threads of {', '.join(task.task for task in tasks)} never "
            f"sleep, on {host.cores:.3g} cores{busy}.",
        ),
        confidence="high" if threads >= host.cores else "medium",
        change="Set PS_ENABLE_POLLING and WORKER_ENABLE_POLLING to False: polling is for a task "
        "whose cores no other task uses.",
    )


@rule("threads-over-cores")
def threads_over_cores(job: JobEvidence) -> Finding | None:
    """A task has more communication threads than cores."""
    over = [
        task
        for task in job.tasks
        if task.reactors and task.cores and task.reactors > max(_HARMLESS, task.cores)
    ]
    if not over:
        return None
    worst = max(over, key=lambda task: (task.reactors or 0) / (task.cores or 1.0))
    communicating = job.communicating_share
    spare = 1 - (worst.cores or 1.0) / (worst.reactors or 1)
    variable = f"NETWORK_{'PS' if worst.job == 'ps' else 'WORKER'}_CORE_NUMBER"
    return Finding(
        title=f"{worst.task} has more communication threads than cores",
        cost=None if communicating is None else spare * communicating,
        evidence=tuple(
            f"{task.task} has {task.reactors} communication threads on {task.cores:.3g} cores."
            for task in over
        ),
        confidence="medium",
        change=f"Set {variable} to at most {max(1, int(worst.cores or 1))}, or leave it unset.",
    )


BUSY = 0.7
"""Share of a task's cores that counts as busy: kernels always leave some gaps."""
_WAITS = 0.2
# With this share or more, more ps or a faster network save at most a tenth of a step.
_COMPUTES = 0.9


@rule(
    "ps-cpu-bound",
    unless=("hot-ps", "big-variable", "workers-past-saturation", "polling-crowded"),
)
def ps_cpu_bound(job: JobEvidence) -> Finding | None:
    """Workers wait for the ps to compute, and the ps have no CPU left."""
    shares = cpu_shares(job.ps)
    split = job.split
    if not shares or statistics.mean(shares) < BUSY:
        return None
    # The rest of a step is mostly the ps applying updates.
    cost = None if split is None else (split.ps_s + split.other_s) / split.step_s
    if cost is not None and cost < _WAITS:
        return None
    cores = sum(task.cores or 0.0 for task in job.ps)
    return Finding(
        title="The ps have no CPU left",
        cost=cost,
        evidence=(
            f"{len(job.ps)} ps use {percent(statistics.mean(shares))} of the {cores:.3g} cores "
            "that they may use.",
            *step_sentences(split),
        ),
        confidence="medium" if split is None else "high",
        change="Give each ps more cores, or add ps (if the variables can be distributed over "
        "them); a faster network will not help.",
    )


@rule("worker-compute-bound", unless=("polling-crowded",))
def worker_compute_bound(job: JobEvidence) -> Finding | None:
    """Workers compute nearly all of the time, or have no CPU left: more ps will not help."""
    usual = workers.usual(job)
    split = typical_split(usual)
    if split is None:
        return None
    computes = split.compute_s / split.step_s
    # A worker at its CPU limit also receives late, so its waiting time includes CPU shortage.
    shares = cpu_shares(usual)
    busy = statistics.mean(shares) if shares else 0.0
    if computes < _COMPUTES and busy < BUSY:
        return None
    share = min(1.0, max(computes, busy))
    at_limit = (
        f"{len(usual)} workers use {percent(busy)} of the "
        f"{sum(worker.cores or 0.0 for worker in usual):.3g} cores that they may use.",
    )
    return Finding(
        title="The workers have no CPU left: more ps will not help"
        if computes < _COMPUTES
        else "The workers compute nearly all of the time: more ps will not help",
        cost=share,
        evidence=(
            *(at_limit if busy >= BUSY else ()),
            *step_sentences(split),
            f"If ps and network cost nothing, a step would take {percent(share)} of its time.",
        ),
        confidence="medium" if split.input_s is None and busy < BUSY else "high",
        change="Add workers, or give each more cores or an accelerator; leave ps and network as "
        "they are.",
    )
