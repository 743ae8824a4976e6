"""Rules for a ps with too much load: one variable is too big, or many are placed unevenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorwire.doctor.evidence import Confidence, Finding, Flow, JobEvidence, PlacedPart, Placement
from tensorwire.doctor.rules import rule
from tensorwire.units import megabytes as mb
from tensorwire.units import percent

UNEVEN = 1.5
"""Largest over mean load. Plans of `balanced` have at most 1.2."""
_TOO_BIG = 1.2  # times a fair share: then no packing of whole variables is even


@dataclass(frozen=True)
class HotPs:
    """The ps with the highest load."""

    ps: str
    share: float
    """Share of the bytes of all ps."""
    heaviest: str
    """Name of the variable, or of the tensor if its variable is unknown."""
    grows: bool
    """Whether that is a table that grows, which no placement moves."""
    is_split_needed: bool
    sentences: tuple[str, ...]
    cost: float | None
    confidence: Confidence

    def finding(self, title: str, change: str) -> Finding:
        if self.grows:
            change = (
                f"Spread {self.heaviest} over all ps: give all their devices to the table "
                "(`devices` of TFRA's get_variable, docs/growing-tables.md)."
            )
        return Finding(title, self.cost, self.sentences, self.confidence, change)


def hot(job: JobEvidence | None, placement: Placement | None) -> HotPs | None:
    """The ps with far more than its share: of traffic if a job was observed, else of bytes."""
    observed = job if job is not None and len(job.ps) > 1 else None
    if observed is not None:
        loads = observed.ps_bytes
    elif placement is not None and placement.ps > 1:
        loads = dict.fromkeys((f"ps:{index}" for index in range(placement.ps)), 0.0)
        for part in placement.parts:
            loads[f"ps:{part.ps}"] += part.bytes
    else:
        return None
    total = sum(loads.values())
    ps, most = max(loads.items(), key=lambda item: item[1])
    if total <= 0 or most * len(loads) < UNEVEN * total:
        return None
    imbalance = most * len(loads) / total
    parts = {_label(part): part for part in _parts_on(ps, placement)}
    confidence: Confidence = "high"
    waiting = None
    if observed is not None:
        does, what = "moved", "tensors between ps and workers"
        heaviest, heaviest_share = _heaviest_by_traffic(observed, ps, parts)
        more = _cpu_sentence(observed, ps)
        waiting = observed.waiting_share
        if waiting is not None:
            more.append(f"Workers wait {percent(waiting)} of a step for ps and wire.")
    else:
        does, what = "holds", "variables"
        largest = max(parts.values(), key=lambda part: part.bytes)
        heaviest, heaviest_share = largest.variable, largest.bytes / most
        more = []
        # Stored bytes are not traffic: an embedding sends only the rows that a batch uses.
        confidence = "medium"
    return HotPs(
        ps=ps,
        share=most / total,
        heaviest=heaviest,
        grows=heaviest in parts and parts[heaviest].grows,
        is_split_needed=heaviest_share * most / total > _TOO_BIG / len(loads),
        sentences=(
            f"{ps} {does} {mb(most)} of the {mb(total)} of {what}: "
            f"{imbalance:.1f} times the mean of {len(loads)} ps.",
            f"{percent(heaviest_share)} of it is {heaviest}.",
            *more,
        ),
        cost=None if waiting is None else waiting * (1 - 1 / imbalance),
        confidence=confidence,
    )


@rule("hot-ps")
def hot_ps(job: JobEvidence | None = None, placement: Placement | None = None) -> Finding | None:
    """Too many variables are on one ps, although they could be distributed."""
    found = hot(job, placement)
    if found is None or found.is_split_needed:
        return None
    return found.finding(
        f"{found.ps} is hot: it carries {percent(found.share)} of the bytes",
        "Distribute the variables by their size instead of round robin: "
        "`tensorwire run --placement balanced`, or tensorwire.tf.placement in the script "
        "(`tensorwire place` shows the loads of each strategy).",
    )


@rule("big-variable")
def big_variable(
    job: JobEvidence | None = None, placement: Placement | None = None
) -> Finding | None:
    """One variable exceeds a fair share, so its ps is hot in every placement."""
    found = hot(job, placement)
    if found is None or not found.is_split_needed:
        return None
    return found.finding(
        f"{found.heaviest} is too big for one ps: {found.ps} carries {percent(found.share)} of the "
        "bytes",
        f"Split {found.heaviest} over all ps: `tensorwire run --placement balanced`, or "
        "tensorwire.tf.placement or a partitioner in the script (`tensorwire place` shows the "
        "loads).",
    )


def _heaviest_by_traffic(
    job: JobEvidence, ps: str, parts: Mapping[str, PlacedPart]
) -> tuple[str, float]:
    """The variable with the most bytes, with its size if it is known, and its share."""
    names = {tensor: label for label, part in parts.items() for tensor in part.tensors}
    pulled = (flow for worker in job.workers for flow in worker.received if flow.peer == ps)
    pushed = (flow for task in job.ps if task.task == ps for flow in task.received)
    read, sent = _bytes_by_name(pulled, names), _bytes_by_name(pushed, names)
    # A tensor that is read names its variable; for a gradient often only the operation is known.
    busier = read if 2 * read.total() >= sent.total() else sent
    heaviest, heaviest_bytes = busier.most_common(1)[0]
    return heaviest, heaviest_bytes / busier.total()


def _bytes_by_name(flows: Iterable[Flow], variables: Mapping[str, str]) -> Counter[str]:
    """Bytes of all workers, by variable where `variables` maps the tensor, else by tensor name."""
    total: Counter[str] = Counter()
    for flow in flows:
        own = flow.name.removesuffix("/Read/ReadVariableOp").removesuffix("/read")
        total[variables.get(flow.name, own)] += flow.bytes  # type: ignore[assignment]
    return total


def _label(part: PlacedPart) -> str:
    """The variable, with its size if that is known."""
    return f"{part.variable} ({mb(part.bytes)})" if part.bytes else part.variable


def _parts_on(ps: str, placement: Placement | None) -> list[PlacedPart]:
    if placement is None:
        return []
    index = int(ps.partition(":")[2])
    return [part for part in placement.parts if part.ps == index]


def _cpu_sentence(job: JobEvidence, hot_task: str) -> list[str]:
    shares = {task.task: task.cpu_share for task in job.ps if task.cpu_share is not None}
    if hot_task not in shares or len(shares) < 2:
        return []
    others = [share for task, share in shares.items() if task != hot_task]
    return [
        f"It uses {percent(shares[hot_task])} of its CPU, "
        f"the others {percent(sum(others) / len(others))}."
    ]
