"""Rules for workers: one that is slower than the others, too many, or waiting for their input."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tensorwire.doctor.evidence import (
    Finding,
    InputProbe,
    JobEvidence,
    Scaling,
    Sessions,
    Split,
    TaskUsage,
    cpu_shares,
    step_sentences,
    typical_split,
)
from tensorwire.doctor.rules import rule
from tensorwire.units import number, percent

_SLOW = 0.7  # of the others' steps
_BUSY = 0.5  # of a synchronous step
_SURPLUS = 1.3  # times the workers that the ps can serve
_SATURATED = 0.75
_GAIN = 0.5  # of the gain if speed grew in proportion to the workers
_WAITS_FOR_INPUT = 0.2  # of a step
_ENOUGH_INPUT = 1.2  # times the needed rate


@dataclass(frozen=True)
class Straggler:
    """A worker that is slow."""

    worker: TaskUsage
    cost: float
    sentence: str
    queue_gain: float = 0.0
    """How many times the steps a shared queue of work would bring, where workers wait for none."""


def slowest(job: JobEvidence) -> Straggler | None:
    """The worker that completes far fewer steps than the others, or makes them wait."""
    workers = [worker for worker in job.workers if worker.steps]
    if len(workers) < 2:
        return None
    rates = {worker.task: (worker.steps or 0.0) / worker.seconds for worker in workers}
    slow = min(workers, key=lambda worker: rates[worker.task])
    usual = statistics.median(rates[w.task] for w in workers if w is not slow)
    if rates[slow.task] < _SLOW * usual:
        lost = (usual - rates[slow.task]) / (usual * len(workers))
        return Straggler(
            slow,
            lost,
            f"{slow.task} takes {number(rates[slow.task])} steps a second, "
            f"the others {number(usual)} (median of {len(workers) - 1}).",
            # An epoch takes as long as the slowest worker needs for its share.
            sum(rates.values()) / (len(workers) * rates[slow.task]),
        )
    return _slowest_of_a_step_in_common(workers)


def _slowest_of_a_step_in_common(workers: list[TaskUsage]) -> Straggler | None:
    """The straggler in synchronous training: all take equal steps, but one works longer."""
    own = {w.task: w.split.own_s for w in workers if w.split is not None}
    if len(own) < 3:
        return None
    slow = max((w for w in workers if w.task in own), key=lambda worker: own[worker.task])
    usual = statistics.median(s for task, s in own.items() if task != slow.task)
    waits = [w.split.ps_s / w.split.step_s for w in workers if w is not slow and w.split]
    busy = slow.split is not None and own[slow.task] / slow.split.step_s > _BUSY
    if not busy or own[slow.task] * _SLOW < usual or statistics.median(waits) < 0.2:
        return None
    return Straggler(
        slow,
        (own[slow.task] - usual) / (slow.step_s or own[slow.task]),
        f"{slow.task} works {number(own[slow.task] * 1e3)} ms in a step; the others work "
        f"{number(usual * 1e3)} ms and then wait.",
    )


def usual(job: JobEvidence) -> list[TaskUsage]:
    """The workers without the one that is slow."""
    slow = slowest(job)
    return [worker for worker in job.workers if slow is None or worker is not slow.worker]


@rule("straggler")
def straggler(job: JobEvidence) -> Finding | None:
    """Finds one worker that is far slower than the others."""
    found = slowest(job)
    if found is None:
        return None
    worker = found.worker
    others = typical_split([w for w in job.workers if w is not worker])
    sentences = [found.sentence]
    if worker.split is not None and others is not None:
        sentences.append(f"Its step: {worker.split.words}.")
        sentences.append(f"The others': {others.words}.")
    return Finding(
        title=f"{worker.task} on {worker.host} is a straggler",
        cost=found.cost,
        evidence=tuple(sentences),
        confidence="high",
        change=_what_to_do(worker, others) + _share_the_data(found),
    )


def _share_the_data(found: Straggler) -> str:
    if not found.queue_gain:
        return ""
    return (
        " If it stays slow, share the data by a tensorwire.tf.WorkQueue: if each worker has a "
        f"fixed share of it now, an epoch takes {1 / found.queue_gain:.0%} of the time."
    )


def _what_to_do(worker: TaskUsage, others: Split | None) -> str:
    if worker.split is None or others is None:
        return f"Check what else runs on {worker.host}, or move {worker.task} to another host."
    own, usual = worker.split, others
    more = {
        "its input": (own.input_s or 0.0) - (usual.input_s or 0.0),
        "its computing": own.compute_s - usual.compute_s,
        "its link": own.wire_s - usual.wire_s,
    }
    reason = max(more, key=lambda name: more[name])
    return {
        "its input": f"Check the input of {worker.task}: its files, or the storage from which "
        f"{worker.host} reads them.",
        "its computing": f"Check what else runs on {worker.host} and the CPU limit of "
        f"{worker.task}, or move it to a host like the others'.",
        "its link": f"Check the link of {worker.host} (`tensorwire nic` there), or move "
        f"{worker.task} to a host like the others'.",
    }[reason]


@rule("workers-past-saturation")
def workers_past_saturation(
    job: JobEvidence | None = None, scaling: Scaling | None = None
) -> Finding | None:
    """The job has more workers than the ps group can serve."""
    if scaling is not None:
        found = _measured_saturation(scaling)
    else:
        found = None if job is None else _computed_saturation(job)
    if found is None:
        return None
    workers, enough, sentence = found
    split = None if job is None else job.split
    return Finding(
        title=f"{workers} workers are more than the ps group can serve",
        cost=1 - enough / workers,
        evidence=(sentence, *step_sentences(split)),
        confidence="high" if scaling is not None else "medium",
        change=f"Run {max(1, round(enough))} workers, or add ps (or cores for them) before adding "
        "workers.",
    )


def _measured_saturation(scaling: Scaling) -> tuple[int, float, str] | None:
    """The workers, those that saturate the ps, and a sentence; None if there are not too many.

    There are if, from the second largest run to the largest, speed grew far too little.
    """
    few, many = sorted(scaling.runs, key=lambda run: run.workers)[-2:]
    if many.workers == few.workers:
        return None
    gain = many.steps_per_s / few.steps_per_s - 1
    if gain >= _GAIN * (many.workers / few.workers - 1):
        return None
    return (
        many.workers,
        max(1.0, few.workers * many.steps_per_s / few.steps_per_s),
        f"{few.workers} workers took {number(few.steps_per_s)} steps a second together, "
        f"{many.workers} take {number(many.steps_per_s)}, with {many.ps} ps.",
    )


def _computed_saturation(job: JobEvidence) -> tuple[int, float, str] | None:
    """Like `_measured_saturation`, if the ps are saturated although each worker loads them little.

    A step needs the time D of the busiest ps and Z of its worker. With more than (D + Z) / D
    workers, each further one only adds waiting: the asymptotic bound of a closed queueing network
    (Denning and Buzen, The Operational Analysis of Queueing Network Models, 1978).
    """
    steps = job.steps
    shares = cpu_shares(job.ps)
    own = [worker.split.own_s for worker in job.workers if worker.split is not None]
    if not steps or not own or not shares or max(shares) < _SATURATED:
        return None
    seconds = statistics.mean(task.seconds for task in job.ps)
    demand_s = max(shares) * seconds / steps
    # With a throttled ps, the work of its workers is underestimated; so the largest is used.
    own_s = max(own)
    enough = (demand_s + own_s) / demand_s
    if enough < 2 or len(job.workers) < _SURPLUS * enough:
        return None
    return (
        len(job.workers),
        enough,
        f"A step needs {number(demand_s * 1e3)} ms of the busiest ps, which is busy "
        f"{percent(max(shares))} of the time, and {number(own_s * 1e3)} ms of its worker: "
        f"{enough:.1f} workers keep the ps busy, and there are {len(job.workers)}.",
    )


@rule("no-device-filters")
def no_device_filters(sessions: Sessions) -> Finding | None:
    """Sessions without device filters, which need every task to be alive."""
    if not sessions.without_device_filters:
        return None
    names = ", ".join(sessions.without_device_filters)
    return Finding(
        title="Sessions without device_filters: one lost or finished worker stalls the others",
        cost=None,
        evidence=(
            f"{names} opened a session that names no device_filters, so it waits for every task "
            "of the cluster whenever it starts or recovers.",
        ),
        confidence="high",
        change="Give it config=tensorwire.tf.ConfigProto(cluster=..., job_name=..., "
        "task_index=...), which sets them.",
        is_risk=True,
    )


@rule("input-bound")
def input_bound(job: JobEvidence | None = None, input: InputProbe | None = None) -> Finding | None:
    """The input takes a large part of a step, or its storage is slower than the job needs."""
    split = None if job is None else typical_split(usual(job))
    share = None
    if split is not None and split.input_s is not None:
        share = split.input_s / split.step_s
    storage = _storage_share(input)
    if share is not None and share >= _WAITS_FOR_INPUT:
        cost = share
    elif share is None and storage is not None and storage < 1:
        cost = 1 - storage
    else:
        return None
    sentences = [*step_sentences(split)]
    if input is not None:
        needed = input.needed_mb_per_s
        sentences.append(
            f"Only reading the data gives {input.mb_per_s:.0f} MB/s, a file opens in "
            f"{input.open_ms:.3g} ms"
            + ("." if needed is None else f"; a worker needs {needed:.3g} MB/s.")
        )
    slow_storage = storage is not None and storage < _ENOUGH_INPUT
    return Finding(
        title=f"The workers wait for their input {percent(cost)} of a step",
        cost=cost,
        evidence=tuple(sentences),
        confidence="high" if share is not None else "medium",
        change="The storage is too slow: make a local copy of the data, or read more and larger "
        "files in parallel."
        if slow_storage
        else "Prepare the input ahead: dataset.map(..., num_parallel_calls=tf.data.AUTOTUNE)"
        ".prefetch(tf.data.AUTOTUNE), and cache() what fits into memory.",
    )


def _storage_share(probe: InputProbe | None) -> float | None:
    """The rate of the storage divided by the rate that a worker needs."""
    if probe is None or not probe.needed_mb_per_s:
        return None
    return probe.mb_per_s / probe.needed_mb_per_s
