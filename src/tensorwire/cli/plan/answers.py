"""Answers what was asked, with progress, and shows it."""

from __future__ import annotations

from pathlib import Path

from tensorwire.cli.plan.asked import Asked
from tensorwire.files import write_whole
from tensorwire.measure.record import json_text
from tensorwire.plan import advice, sweep, target
from tensorwire.plan.plan_result import Basis, PlanResult
from tensorwire.plan.prediction import PredictionRequest
from tensorwire.report import plan as report
from tensorwire.report.progress import ProgressDisplay


def give(asked: Asked, json_path: Path | None, report_path: Path | None) -> None:
    """Predicts, writes the files that were asked for, and prints the tables.

    Raises:
        TensorwireError: what was asked cannot be answered, or a file not be read or written.
    """
    from tensorwire.report import page, terminal

    calibration, text = asked.calibration()
    questions = asked.questions(calibration)
    basis = Basis(text, questions[0])
    answer = _answer(asked, questions, basis)
    if json_path is not None:
        write_whole(json_path, json_text(answer.document()))
    shown = report.page(answer)
    if report_path is not None:
        page.write(report_path, shown)
    terminal.show(shown.sections)


def _answer(asked: Asked, questions: list[PredictionRequest], basis: Basis) -> PlanResult:
    if asked.sweep is not None:
        return PlanResult(basis, None, (), (), _curves(questions, asked.sweep), ())
    if asked.target_steps_per_s is not None:
        wanted = asked.target_steps_per_s
        with ProgressDisplay("looking for clusters", 0) as progress:
            offers = target.cheapest(questions, wanted, asked.prices, progress.activity)
        return PlanResult(basis, None, (), (), (), offers, wanted)
    total = sum(question.worker_steps for question in questions)
    with ProgressDisplay("simulating", total) as progress:
        predictions = []
        for question in questions:
            progress.activity(report.name(question))
            predictions.append((question, question.answer(progress.advance)))
        changes = []
        if asked.with_changes:
            changes = advice.changes(*predictions[0], lambda text: progress.activity(f"if: {text}"))
    return PlanResult(basis, asked.case, predictions, changes, (), ())


def _curves(
    questions: list[PredictionRequest], over: sweep.Range
) -> list[tuple[PredictionRequest, sweep.Curve]]:
    curves = []
    with ProgressDisplay("sweeping", len(questions) * len(over.points())) as progress:
        for question in questions:

            def asking(number: int, of: PredictionRequest = question) -> None:
                progress.activity(f"{report.name(of)}: {number} {over.what}")
                progress.advance()

            curves.append((question, sweep.sweep(question, over, asking)))
    return curves
