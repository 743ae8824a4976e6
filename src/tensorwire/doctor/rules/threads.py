"""Communication threads that are too many, or that never sleep where others need the cores."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwire.doctor import job_usage
from tensorwire.doctor.evidence import Evidence, Finding, HostUsage, JobEvidence
from tensorwire.doctor.job_usage import percent

_NO_CORE_FREE = 0.9
_HARMLESS = 2  # threads that sleep, however few the cores


@dataclass(frozen=True)
class Crowding:
    """A host on which polling threads take cores that others need."""

    host: HostUsage
    threads: int
    tasks: tuple[str, ...]


def crowding(job: JobEvidence) -> Crowding | None:
    """The host where threads that poll take the largest share of cores that others want."""
    found = []
    for host in job.hosts:
        polling = [t for t in job.tasks if t.host == host.host and t.polling and t.reactors]
        threads = sum(task.reactors or 0 for task in polling)
        is_full = host.cpu_share is not None and host.cpu_share >= _NO_CORE_FREE
        if threads and (threads >= host.cores or is_full):
            found.append(Crowding(host, threads, tuple(task.task for task in polling)))
    return max(found, key=lambda each: each.threads / each.host.cores, default=None)


def polling_crowded(evidence: Evidence) -> Finding | None:
    """Threads that poll take the cores that the work needs."""
    found = crowding(evidence.job) if evidence.job is not None else None
    if found is None:
        return None
    host = found.host
    busy = "" if host.cpu_share is None else f", {percent(host.cpu_share)} of whose time is used"
    return Finding(
        rule="polling-crowded",
        title=f"Polling threads take the cores of {host.host}",
        cost=min(1.0, found.threads / host.cores),
        evidence=(
            f"{found.threads} communication threads of {', '.join(found.tasks)} never sleep, on "
            f"{host.cores:.3g} cores{busy}.",
        ),
        confidence="high" if found.threads >= host.cores else "medium",
        change="Set PS_ENABLE_POLLING and WORKER_ENABLE_POLLING to False: polling is for a task "
        "with cores of its own.",
    )


def threads_over_cores(evidence: Evidence) -> Finding | None:
    """A task has more communication threads than cores."""
    job = evidence.job
    if job is None:
        return None
    over = [
        task
        for task in job.tasks
        if task.reactors and task.cores and task.reactors > max(_HARMLESS, task.cores)
    ]
    if not over:
        return None
    worst = max(over, key=lambda task: (task.reactors or 0) / (task.cores or 1.0))
    communicating = job_usage.communicating_share(job)
    spare = 1 - (worst.cores or 1.0) / (worst.reactors or 1)
    variable = f"NETWORK_{'PS' if worst.job == 'ps' else 'WORKER'}_CORE_NUMBER"
    return Finding(
        rule="threads-over-cores",
        title=f"{worst.task} has more communication threads than cores",
        cost=None if communicating is None else spare * communicating,
        evidence=tuple(
            f"{task.task} has {task.reactors} communication threads on {task.cores:.3g} cores."
            for task in over
        ),
        confidence="medium",
        change=f"Set {variable} to at most {max(1, int(worst.cores or 1))}, or leave it unset.",
    )
