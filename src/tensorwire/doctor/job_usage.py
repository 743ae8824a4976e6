"""Metrics of a job that several rules use."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from tensorwire.doctor.evidence import Flow, JobEvidence, Split, TaskUsage
from tensorwire.units import number


def ps_bytes(job: JobEvidence) -> dict[str, float]:
    """Bytes of tensors that each ps exchanged with workers, both directions together."""
    moved: Counter[str] = Counter({task.task: 0.0 for task in job.ps})
    for task in job.tasks:
        for flow in task.received:
            for end in (task.task, flow.peer):
                if end in moved:
                    moved[end] += flow.bytes  # type: ignore[assignment]
    return dict(moved)


def flows_of(job: JobEvidence, ps: str) -> tuple[list[Flow], list[Flow]]:
    """The tensors that workers read from a ps, and those that they sent to it."""
    read = [flow for worker in job.workers for flow in worker.received if flow.peer == ps]
    sent = [flow for task in job.ps if task.task == ps for flow in task.received]
    return read, sent


def bytes_by_name(flows: Sequence[Flow], variables: Mapping[str, str]) -> Counter[str]:
    """Bytes of all workers, by variable where `variables` maps the tensor, else by tensor name."""
    total: Counter[str] = Counter()
    for flow in flows:
        own = flow.name.removesuffix("/Read/ReadVariableOp").removesuffix("/read")
        total[variables.get(flow.name, own)] += flow.bytes  # type: ignore[assignment]
    return total


def typical_split(workers: Sequence[TaskUsage]) -> Split | None:
    """The median over the workers of each part of the split; None if no worker has a split."""
    splits = [worker.split for worker in workers if worker.split is not None]
    if not splits:
        return None
    inputs = [split.input_s for split in splits if split.input_s is not None]
    return Split(
        input_s=statistics.median(inputs) if inputs else None,
        compute_s=statistics.median(split.compute_s for split in splits),
        ps_s=statistics.median(split.ps_s for split in splits),
        wire_s=statistics.median(split.wire_s for split in splits),
        other_s=statistics.median(split.other_s for split in splits),
    )


def waiting_share(job: JobEvidence) -> float | None:
    """Share of a worker's step in which it waits for ps or wire."""
    split = typical_split(job.workers)
    return None if split is None else (split.ps_s + split.wire_s) / split.step_s


def communicating_share(job: JobEvidence) -> float | None:
    """Share of a worker's step that is neither input nor own compute."""
    split = typical_split(job.workers)
    return None if split is None else 1 - split.own_s / split.step_s


def total_steps(job: JobEvidence) -> float:
    """Steps of all workers during the observation."""
    return sum(worker.steps or 0.0 for worker in job.workers)


def typical_step_s(job: JobEvidence) -> float | None:
    """Median over the workers of the seconds of a step; None if no steps were counted."""
    known = [worker.step_s for worker in job.workers if worker.step_s is not None]
    return statistics.median(known) if known else None


def split_words(split: Split) -> str:
    """ "input 3 %, compute 60 %, waiting for ps 20 %, for the wire 10 %, rest 7 % of 12 ms"."""
    own = "compute" if split.input_s is not None else "input and compute"
    parts = [
        *([("input", split.input_s)] if split.input_s is not None else []),
        (own, split.compute_s),
        ("waiting for ps", split.ps_s),
        ("for the wire", split.wire_s),
        ("rest", split.other_s),
    ]
    words = ", ".join(f"{name} {percent(part / split.step_s)}" for name, part in parts)
    return f"{words} of {split.step_s * 1e3:.3g} ms"


def step_sentences(split: Split | None) -> tuple[str, ...]:
    """The sentence about a worker's step; none if its parts are unknown."""
    return () if split is None else (f"A worker's step: {split_words(split)}.",)


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def mb(size_bytes: float) -> str:
    """MB of 10^6 bytes."""
    return f"{number(size_bytes / 1e6)} MB"
