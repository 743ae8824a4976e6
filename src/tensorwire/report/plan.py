"""The planner's results and calibrations as sections of a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tensorwire import __version__
from tensorwire.placement import packing
from tensorwire.plan.cluster import link_text
from tensorwire.plan.costs import Calibration
from tensorwire.plan.plan_result import PlanResult
from tensorwire.plan.prediction import PredictedLoad, Prediction, PredictionRequest
from tensorwire.plan.search import Curve, hottest_variable, saturated
from tensorwire.report.section import Bar, Bars, Line, Lines, Report, Section, Table
from tensorwire.units import number

_SHOWN_USES = 3
_SHOWN_OFFERS = 8


def name(question: PredictionRequest) -> str:
    """The name of a prediction among several."""
    return f"{question.shape.layout}, {question.placement}, {question.side}"


def page(answer: PlanResult) -> Report:
    """The whole result as a page; the terminal shows its sections."""
    sections = [*_predicted(answer), *_curves(answer), *_offers(answer)]
    question = answer.basis.question
    last = sections[-1]
    sections[-1] = dataclasses.replace(last, notes=[*last.notes, *_rests_on(answer)])
    return Report(
        title="tensorwire plan",
        facts=[
            f"tensorwire {__version__}",
            question.job.name,
            f"machines of {question.shape.cores:g} cores, links of "
            f"{link_text(question.shape.link_bytes_per_s)}",
        ],
        sections=sections,
        headlines=[section.headline for section in sections if section.headline],
    )


def _rests_on(answer: PlanResult) -> list[str]:
    basis = answer.basis
    calibration = basis.question.calibration
    beyond = basis.extrapolation(*answer.most)
    return [
        f"based on {basis.text}: {basis.machine}",
        f"the job is {basis.question.job.name}; its own operations: {basis.question.job.source}",
        *([f"extrapolates: {'; '.join(beyond)}"] if beyond else []),
        *calibration.notes,
    ]


def _predicted(answer: PlanResult) -> list[Section]:
    if not answer.predictions:
        return []
    first = answer.predictions[0][1]
    title = f"{first.workers} workers and {first.ps} ps"
    if answer.case is not None:
        title = f"Case {answer.case} of the published table: {title}"
    best = max(answer.predictions, key=lambda each: each[1].steps_per_s)
    several = len(answer.predictions) > 1
    fastest = f"The fastest of {len(answer.predictions)} is " if several else ""
    headline = f"{fastest}{name(best[0])}: {number(best[1].steps_per_s)} steps a second."
    if (limit := saturated(best[1])) is not None:
        headline += f" It is bound by {limit}."
    bars = [
        Bar(name(question), each.steps_per_s, each.side) for question, each in answer.predictions
    ]
    sections = [
        Section(
            title,
            headline,
            [Bars("Steps a second", "steps/s", bars)],
            [make(answer.predictions) for make in (_rates, _parts, _loads)],
            warnings=[
                sentence
                for question, each in answer.predictions
                if (sentence := _hot(question, each))
            ],
        )
    ]
    if answer.changes:
        sections.append(_changes(answer))
    return sections


def _changes(answer: PlanResult) -> Section:
    """Changes to the first cluster; a note lists those that do not help, with the reason."""
    question, now = answer.predictions[0]
    rows = [["as it is", number(now.steps_per_s), "1"]]
    rows += [[c.text, number(c.steps_per_s), f"{c.gain:.2f}"] for c in answer.changes if c.helps]
    in_vain = [c.text for c in answer.changes if not c.helps]
    notes = []
    if in_vain:
        use = now.uses[0]
        reason = f"{use.name}, {use.share:.0%} busy, limits" if saturated(now) else "nothing limits"
        notes.append(f"no gain: {'; '.join(in_vain)} ({reason} the cluster as it is)")
    columns = ["change", "steps/s", "times"]
    tables = [Table(f"Changes to {name(question)}, each by itself", columns, [rows])]
    return Section("What to change", tables=tables, notes=notes)


def _rates(predictions: Sequence[tuple[PredictionRequest, Prediction]]) -> Table:
    columns = ["prediction", "steps/s", "examples/s", "busiest", "busy", "bound by it"]
    rows = [
        [
            name(question),
            number(each.steps_per_s),
            number(each.examples_per_s),
            each.uses[0].name,
            f"{each.uses[0].share:.0%}",
            "yes" if saturated(each) is not None else "no",
        ]
        for question, each in predictions
    ]
    return Table("Predicted", columns, [rows])


def _parts(predictions: Sequence[tuple[PredictionRequest, Prediction]]) -> Table:
    columns = ["prediction", "input", "pull", "compute", "push", "others", "step"]
    rows = []
    for question, each in predictions:
        step = each.step
        parts = (step.input_s, step.pull_s, step.compute_s, step.push_s, step.others_s)
        rows.append([name(question), *(number(s * 1e3) for s in (*parts, step.step_s))])
    return Table("Where a worker's step goes, ms", columns, [rows])


def _loads(predictions: Sequence[tuple[PredictionRequest, Prediction]]) -> Table:
    columns = ["prediction", "tasks", "number", "cores", "out MB/s", "in MB/s", "link busy"]
    groups = [
        [_load(name(question), question, task) for task in each.tasks]
        for question, each in predictions
    ]
    return Table("Each task's load", columns, groups, text_columns=2)


def _load(of: str, question: PredictionRequest, task: PredictedLoad) -> list[str]:
    link = question.shape.link_bytes_per_s
    # Of what tensors get of it, as "busiest" has it.
    share = question.calibration.costs[question.side].link_share
    moved = max(task.out_bytes_per_s, task.in_bytes_per_s)
    return [
        of,
        task.task,
        str(task.count),
        number(task.cores),
        number(task.out_bytes_per_s / 1e6),
        number(task.in_bytes_per_s / 1e6),
        f"{moved / link / share:.0%}" if link else "-",
    ]


def _hot(question: PredictionRequest, prediction: Prediction) -> str | None:
    """A sentence if one ps carries most of the load."""
    ps = [task for task in prediction.tasks if task.task.startswith("ps:")]
    moved = [task.out_bytes_per_s + task.in_bytes_per_s for task in ps for _ in range(task.count)]
    limit = saturated(prediction)
    if len(moved) < 2 or packing.imbalance(moved) < 1.5 or limit is None or "ps:" not in limit:
        return None
    hottest = hottest_variable(question)
    if hottest is None:
        return None
    index, variable, share = hottest
    return (
        f"{name(question)}: ps:{index} carries {max(moved) / sum(moved):.0%} of the bytes of "
        f"{len(moved)} ps; {variable} alone is {share:.0%}"
    )


def _curves(answer: PlanResult) -> list[Section]:
    if not answer.curves:
        return []
    what = answer.curves[0][1].what
    lines = [
        Line(name(question), [(at, each.steps_per_s) for at, each in curve.points])
        for question, curve in answer.curves
    ]
    bends = [_bend(question, curve) for question, curve in answer.curves]
    return [
        Section(
            f"Steps a second over the number of {what}",
            max(zip((c.best[1].steps_per_s for _, c in answer.curves), bends, strict=True))[1],
            [Lines("Steps a second", "steps/s", lines, over=what)],
            [_points(what, question, curve) for question, curve in answer.curves],
            notes=bends,
        )
    ]


def _bend(question: PredictionRequest, curve: Curve) -> str:
    most, best = curve.best
    if curve.bend is None:
        return f"{name(question)}: no bend up to {curve.points[-1][0]} {curve.what}."
    at = dict(curve.points)[curve.bend]
    limit = saturated(at) or saturated(best) or "no one thing"
    return (
        f"{name(question)}: it bends at {curve.bend} {curve.what} ({number(at.steps_per_s)} "
        f"steps/s), bound by {limit}; the most is {number(best.steps_per_s)} steps/s with {most}."
    )


def _points(what: str, question: PredictionRequest, curve: Curve) -> Table:
    rows = [
        [
            f"{at}{' (bend)' if at == curve.bend else ''}",
            number(each.steps_per_s),
            number(each.step.step_s * 1e3),
            *(f"{use.name} {use.share:.0%}" for use in each.uses[:_SHOWN_USES]),
        ]
        for at, each in curve.points
    ]
    busiest = [f"busiest {place}" for place in range(1, _SHOWN_USES + 1)]
    return Table(name(question), [what, "steps/s", "step ms", *busiest], [rows])


def _offers(answer: PlanResult) -> list[Section]:
    if not answer.offers:
        return []
    best = answer.offers[0]
    shape = best.question.shape
    rows = []
    for offer in answer.offers[:_SHOWN_OFFERS]:
        of = offer.question.shape
        rows.append(
            [
                name(offer.question),
                str(of.workers),
                str(of.ps),
                str(of.machines),
                number(offer.prediction.steps_per_s),
                number(offer.cores),
                f"{offer.prediction.uses[0].name} {offer.prediction.uses[0].share:.0%}",
            ]
        )
    columns = ["cluster", "workers", "ps", "machines", "steps/s", "cores", "busiest"]
    return [
        Section(
            f"The smallest clusters for {number(answer.target_steps_per_s or 0.0)} steps a second",
            f"{shape.workers} workers and {shape.ps} ps, {name(best.question)}, take "
            f"{number(best.prediction.steps_per_s)} steps a second on {number(best.cores)} cores.",
            tables=[Table("The smallest of each, the smallest first", columns, [rows])],
        )
    ]


_US, _NS = 1e6, 1e9
_ROWS = (
    ("fixed cost of a step: worker (us)", "step_cpu_s", _US),
    ("a request to a ps: worker (us)", "request_worker_cpu_s", _US),
    ("a request to a ps: ps (us)", "request_ps_cpu_s", _US),
    ("a tensor: sender (us)", "tensor_send_cpu_s", _US),
    ("a tensor: receiver (us)", "tensor_receive_cpu_s", _US),
    ("a kilobyte: sender (ns)", "byte_send_cpu_s", 1e3 * _NS),
    ("a kilobyte: receiver (ns)", "byte_receive_cpu_s", 1e3 * _NS),
    ("waiting per step (us)", "step_latency_s", _US),
    ("cores that an exchange keeps busy", "exchange_parallelism", 1.0),
    ("CPU factor with many workers", "crowded_factor", 1.0),
)


def section(calibration: Calibration, path: Path) -> Section:
    """The costs, and the file in which they are stored."""
    sides = sorted(calibration.costs)
    rows = [
        [label, *(number(getattr(calibration.costs[side], name) * scale) for side in sides)]
        for label, name, scale in _ROWS
    ]
    return Section(
        title="What a step costs",
        headline=f"stored in {path}: `tensorwire plan` uses it from now on.",
        tables=[Table("CPU time", ["", *sides], [rows])],
        notes=list(calibration.notes),
    )
