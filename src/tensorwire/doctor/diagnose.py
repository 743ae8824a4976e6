"""Applies all rules to the evidence, and lists what was examined."""

from __future__ import annotations

from collections.abc import Iterator

from tensorwire.doctor.evidence import SMALLEST_COST, Diagnosis, Evidence
from tensorwire.doctor.rules import findings
from tensorwire.doctor.rules.stalled import within_long_step


def diagnose(evidence: Evidence) -> Diagnosis:
    """Findings sorted by cost, the highest first; risks and unknown costs come last."""
    worth = [each for each in findings(evidence) if each.cost is None or each.cost >= SMALLEST_COST]
    worth.sort(key=lambda finding: -1.0 if finding.cost is None else finding.cost, reverse=True)
    return Diagnosis(
        findings=tuple(worth),
        looked_at=tuple(_looked_at(evidence)),
        not_looked_at=tuple(_not_looked_at(evidence)),
        evidence=evidence,
    )


def _looked_at(evidence: Evidence) -> Iterator[str]:
    if evidence.layers is not None:
        names = dict.fromkeys(layer.name for layer in evidence.layers.measured)
        yield f"the layers {', '.join(names)}: {evidence.layers.source}"
    if evidence.job is not None:
        job = evidence.job
        yield f"{len(job.ps)} ps and {len(job.workers)} workers on {job.protocol}: {job.source}"
        if all(worker.split is None for worker in job.workers):
            yield "steps without their parts: no worker reported them"
        for worker in job.workers:
            if within_long_step(worker):
                yield (
                    f"{worker.task}, which computes but ended no step in {worker.seconds:.3g} s "
                    "(--seconds sets a longer time)"
                )
    if evidence.placement is not None:
        place = evidence.placement
        yield f"the placement of {len(place.parts)} variables on {place.ps} ps: {place.source}"
    if evidence.input is not None:
        yield f"the input path: {evidence.input.source}"
    if evidence.sessions is not None:
        yield f"the device filters of the sessions: {evidence.sessions.source}"
    if evidence.scaling is not None:
        yield f"{len(evidence.scaling.runs)} runs with different workers: {evidence.scaling.source}"


def _not_looked_at(evidence: Evidence) -> Iterator[str]:
    if evidence.layers is None:
        yield "the layers between the hosts (--layers, or --job and --target on two hosts)"
    if evidence.job is None:
        yield "a running job (--endpoints, or --record of an earlier look)"
    elif len(evidence.job.hosts) > 1 and not any(h.link_mb_per_s for h in evidence.job.hosts):
        yield "how full the links of the hosts are (--link, such as 10gbit)"
    if evidence.placement is None:
        yield "the graph's placement (--graph or --placement-file)"
    if evidence.input is None:
        yield "the input path (--data)"
