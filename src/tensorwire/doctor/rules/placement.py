"""Rules for a ps with too much load: one variable is too big, or many are placed unevenly."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwire.doctor import job_usage
from tensorwire.doctor.evidence import Confidence, Finding, JobEvidence, Placement
from tensorwire.doctor.job_usage import mb, percent
from tensorwire.doctor.rule import rule

UNEVEN = 1.5
"""Largest over mean load. Plans of `balanced` have at most 1.2."""
_TOO_BIG = 1.2  # times a fair share: then no packing of whole variables is even


@dataclass(frozen=True)
class HotPs:
    """The ps with the highest load."""

    ps: str
    share: float
    """Share of the bytes of all ps."""
    imbalance: float
    heaviest: str
    """Name of the variable, or of the tensor if its variable is unknown."""
    is_split_needed: bool
    sentences: tuple[str, ...]
    cost: float | None
    confidence: Confidence

    def finding(self, title: str, change: str) -> Finding:
        return Finding(title, self.cost, self.sentences, self.confidence, change)


def hot(job: JobEvidence | None, placement: Placement | None) -> HotPs | None:
    """The ps with far more than its share: of traffic if a job was observed, else of bytes."""
    if job is not None and len(job.ps) > 1:
        return _hot_by_traffic(job, placement)
    if placement is not None and placement.ps > 1:
        return _hot_by_bytes(placement)
    return None


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


def _hot_by_traffic(job: JobEvidence, placement: Placement | None) -> HotPs | None:
    loads = job_usage.ps_bytes(job)
    total = sum(loads.values())
    if total <= 0:
        return None
    ps, most = max(loads.items(), key=lambda item: item[1])
    imbalance = most * len(loads) / total
    if imbalance < UNEVEN:
        return None
    names = _variables(ps, placement)
    read, sent = (job_usage.bytes_by_name(flows, names) for flows in job_usage.flows_of(job, ps))
    # A tensor that is read names its variable; for a gradient often only the operation is known.
    busier = read if 2 * read.total() >= sent.total() else sent
    heaviest, heaviest_bytes = busier.most_common(1)[0]
    heaviest_share = heaviest_bytes / (total * busier.total() / most)
    sentences = [
        f"{ps} moved {mb(most)} of the {mb(total)} of tensors between ps and workers: "
        f"{imbalance:.1f} times the mean of {len(loads)} ps.",
        f"{percent(heaviest_bytes / busier.total())} of it is {heaviest}.",
        *_cpu_sentence(job, ps),
    ]
    waiting = job_usage.waiting_share(job)
    if waiting is not None:
        sentences.append(f"Workers wait {percent(waiting)} of a step for ps and wire.")
    return HotPs(
        ps=ps,
        share=most / total,
        imbalance=imbalance,
        heaviest=heaviest,
        is_split_needed=heaviest_share > _TOO_BIG / len(loads),
        sentences=tuple(sentences),
        cost=None if waiting is None else waiting * (1 - 1 / imbalance),
        confidence="high",
    )


def _cpu_sentence(job: JobEvidence, hot_task: str) -> list[str]:
    shares = {task.task: task.cpu_share for task in job.ps if task.cpu_share is not None}
    if hot_task not in shares or len(shares) < 2:
        return []
    others = [share for task, share in shares.items() if task != hot_task]
    return [
        f"It uses {percent(shares[hot_task])} of its CPU, "
        f"the others {percent(sum(others) / len(others))}."
    ]


def _variables(ps: str, placement: Placement | None) -> dict[str, str]:
    """The variables of a ps with their sizes, by the names of their tensors on the wire."""
    index = int(ps.partition(":")[2])
    return {
        tensor: f"{part.variable} ({mb(part.bytes)})" if part.bytes else part.variable
        for part in (placement.parts if placement is not None else ())
        if part.ps == index
        for tensor in part.tensors
    }


def _hot_by_bytes(placement: Placement) -> HotPs | None:
    loads = [0.0] * placement.ps
    for part in placement.parts:
        loads[part.ps] += part.bytes
    total = sum(loads)
    if total <= 0:
        return None
    index = loads.index(max(loads))
    imbalance = loads[index] * len(loads) / total
    if imbalance < UNEVEN:
        return None
    on_it = [part for part in placement.parts if part.ps == index]
    largest = max(on_it, key=lambda part: part.bytes)
    return HotPs(
        ps=f"ps:{index}",
        share=loads[index] / total,
        imbalance=imbalance,
        heaviest=largest.variable,
        is_split_needed=largest.bytes / total > _TOO_BIG / len(loads),
        sentences=(
            f"ps:{index} holds {mb(loads[index])} of the {mb(total)} of variables: "
            f"{imbalance:.1f} times the mean of {len(loads)} ps.",
            f"{percent(largest.bytes / loads[index])} of it is {largest.variable}.",
        ),
        cost=None,
        # Stored bytes are not traffic: an embedding sends only the rows that a batch uses.
        confidence="medium",
    )
