"""A diagnosis as lines for the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from tensorwire.doctor.evidence import SMALLEST_COST, Diagnosis, Evidence, Finding
from tensorwire.report.section import Bar, Bars, Chart, Report, Section
from tensorwire.units import percent

_MOST_WORKERS = 6  # that get a chart of their own

NOTHING = f"Nothing found that costs {percent(SMALLEST_COST)} of a step or more."


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The lines for a terminal."""
    for number, finding in enumerate(diagnosis.findings, 1):
        yield f"{number}. {finding.title}  [{finding.rule}: {_weight(finding)}]"
        yield from (f"   - {sentence}" for sentence in finding.evidence)
        yield f"   => {finding.change}"
        yield ""
    if not diagnosis.findings:
        yield NOTHING
    yield from (f"looked at: {each}" for each in diagnosis.looked_at)
    yield from (f"not looked at: {each}" for each in diagnosis.not_looked_at)


def page(diagnosis: Diagnosis) -> Report:
    """The diagnosis as a page with charts."""
    evidence = diagnosis.evidence
    sections = [
        Section(
            title=f"{number}. {finding.title}",
            headline=finding.change,
            notes=[*finding.evidence, f"Rule {finding.rule}: {_weight(finding)}."],
        )
        for number, finding in enumerate(diagnosis.findings, 1)
    ]
    sections.append(
        Section(
            title="What was looked at",
            charts=list(_charts(evidence)),
            notes=[
                *diagnosis.looked_at,
                *(f"Not looked at: {each}" for each in diagnosis.not_looked_at),
            ],
        )
    )
    machine = evidence.machine
    return Report(
        title="tensorwire doctor",
        facts=[
            f"tensorwire {evidence.version}",
            *([f"TensorFlow {evidence.tensorflow}"] if evidence.tensorflow else []),
            *([f"{machine.cpu}, {machine.cores} cores"] if machine else []),
        ],
        sections=sections,
        headlines=[finding.title for finding in diagnosis.findings] or [NOTHING],
    )


def _weight(finding: Finding) -> str:
    cost = "cost unknown"
    if finding.is_risk:
        cost = "a risk"
    elif finding.cost is not None:
        cost = f"costs {percent(finding.cost)} of a step"
    return f"{cost}, confidence {finding.confidence}"


def _charts(evidence: Evidence) -> Iterator[Chart]:
    job = evidence.job
    if job is not None:
        slowest_first = sorted(job.workers, key=lambda worker: -(worker.step_s or 0.0))
        for worker in slowest_first[:_MOST_WORKERS]:
            if worker.split is not None:
                split = worker.split
                parts = {
                    "input": split.input_s or 0.0,
                    "compute": split.compute_s,
                    "waiting for ps": split.ps_s,
                    "waiting for the wire": split.wire_s,
                    "rest": split.other_s,
                }
                bars = [Bar(name, part * 1e3, worker.task) for name, part in parts.items()]
                yield Bars(f"A step of {worker.task}", "ms", bars)
        loads = job.ps_bytes
        if len(loads) > 1:
            bars = [Bar(ps, moved / 1e6, "ps") for ps, moved in loads.items()]
            yield Bars("Tensors that each ps moved", "MB", bars)
    if evidence.layers is not None:
        bars = [
            Bar(f"{layer.name} {layer.protocol or ''}".strip(), layer.mb_per_s, layer.name)
            for layer in evidence.layers.measured
            if layer.mb_per_s is not None
        ]
        yield Bars("Layers between the hosts", "MB/s", bars)
