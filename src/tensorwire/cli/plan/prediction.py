"""The questions and the answers of `tensorwire plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire.cli.options import Output
from tensorwire.cli.tensorflow import model_of_file
from tensorwire.dataclass_json import json_text
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.plan import calibration_file, models, search, sources
from tensorwire.plan.cluster import Shape
from tensorwire.plan.costs import Calibration
from tensorwire.plan.job import JobModel
from tensorwire.plan.plan_result import Basis, PlanResult
from tensorwire.plan.prediction import PredictionRequest
from tensorwire.plan.search import Range
from tensorwire.plan.side_by_side import answers
from tensorwire.report import plan as report
from tensorwire.report.progress import ProgressDisplay


@dataclass(frozen=True)
class Asked:
    """All options, with the checks done that need no file."""

    from_path: Path | None
    model: str | None
    graph: Path | None
    batch: int | None
    calibration_path: Path | None
    shapes: tuple[Shape, ...]
    """One shape for each layout."""
    sides: tuple[str, ...]
    placements: tuple[str, ...]
    job_changes: Mapping[str, Any]
    sweep: Range | None
    case: str | None
    target_steps_per_s: float | None
    seed: int
    with_changes: bool

    def questions(self, calibration: Calibration) -> list[PredictionRequest]:
        """Every layout, protocol and placement that was named.

        Raises:
            TensorwireError: a file cannot be read, or has wrong contents.
        """
        job = self._job(calibration)
        return [
            PredictionRequest(job, calibration, side, placement, shape, self.seed)
            for shape in self.shapes
            for placement in self.placements
            for side in self.sides
        ]

    def calibration(self) -> tuple[Calibration, str]:
        """The calibration to predict from, and a text about its origin."""
        if self.calibration_path is not None:
            return calibration_file.read(self.calibration_path), f"costs of {self.calibration_path}"
        own = calibration_file.own_path()
        if own.exists():
            return calibration_file.read(own), "this user's own calibration"
        if calibration_file.SHIPPED.exists():
            return calibration_file.read(calibration_file.SHIPPED), (
                "the calibration shipped with tensorwire, from another, maybe slower machine: "
                "`tensorwire plan calibrate` measures this one"
            )
        raise TensorwireError("there is no calibration yet: run `tensorwire plan calibrate`")

    def _job(self, calibration: Calibration) -> JobModel:
        given = [each for each in (self.from_path, self.model, self.graph) if each is not None]
        if len(given) > 1:
            raise UsageError("give --from, --model or --graph, one of them")
        if self.from_path is not None:
            job = sources.of_record(self.from_path, calibration)
        elif self.graph is not None:
            model = model_of_file(self.graph)
            job = sources.of_model(model, calibration, str(self.graph), self.batch)
        elif (self.model or (self.case and models.ONE_BIG)) == models.ONE_BIG:
            job = models.one_big(calibration.kernels)
        else:
            job = sources.of_calibrated(calibration, self.model or "ctr")
        if self.batch is not None and self.graph is None and self.batch != job.batch_size:
            raise UsageError(
                f"--batch-size is for --graph: {job.name} was measured with {job.batch_size}"
            )
        return job.having(**self.job_changes)


def give(asked: Asked, output: Output) -> None:
    """Predicts, writes the files that were asked for, and prints the tables.

    Raises:
        TensorwireError: the question has no answer, or a file cannot be read or written.
    """
    from tensorwire.report import terminal

    calibration, text = asked.calibration()
    questions = asked.questions(calibration)
    basis = Basis(text, questions[0])
    answer = _answer(asked, questions, basis)
    shown = report.page(answer)
    output.give(
        lambda: json_text(answer.document()),
        lambda: shown,
        lambda: terminal.show(shown.sections),
    )


def _answer(asked: Asked, questions: list[PredictionRequest], basis: Basis) -> PlanResult:
    if asked.sweep is not None:
        return PlanResult(basis, None, (), (), _curves(questions, asked.sweep), ())
    if asked.target_steps_per_s is not None:
        wanted = asked.target_steps_per_s
        with ProgressDisplay("looking for clusters", 0, is_long=False) as progress:
            offers = search.smallest(questions, wanted, progress.activity)
        return PlanResult(basis, None, (), (), (), offers, wanted)
    total = sum(question.worker_steps for question in questions)
    with ProgressDisplay("simulating", total, is_long=False) as progress:
        predictions = list(zip(questions, answers(questions, progress.advance), strict=True))
        changes = []
        if asked.with_changes:
            changes = search.changes(
                *predictions[0], predictions, lambda text: progress.activity(f"if: {text}")
            )
    return PlanResult(basis, asked.case, predictions, changes, (), ())


def _curves(
    questions: list[PredictionRequest], over: search.Range
) -> list[tuple[PredictionRequest, search.Curve]]:
    curves = []
    with ProgressDisplay(
        "sweeping", len(questions) * len(over.points()), is_long=False
    ) as progress:
        for question in questions:

            def asking(number: int, of: PredictionRequest = question) -> None:
                progress.activity(f"{report.name(of)}: {number} {over.what}")
                progress.advance()

            curves.append((question, search.sweep(question, over, asking)))
    return curves
