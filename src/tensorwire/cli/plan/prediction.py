"""The questions and the answers of `tensorwire plan`."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwire.cli.options import Output
from tensorwire.cli.plan.options import PlanOptions
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
    """The options, with the checks done that need no file."""

    options: PlanOptions
    shapes: tuple[Shape, ...]
    """One shape for each layout."""
    sides: tuple[str, ...]
    placements: tuple[str, ...]
    sweep: Range | None
    case: str | None

    def questions(self, calibration: Calibration) -> list[PredictionRequest]:
        """Every layout, protocol and placement that was named.

        Raises:
            TensorwireError: a file cannot be read, or has wrong contents.
        """
        job = self._job(calibration)
        return [
            PredictionRequest(job, calibration, side, placement, shape, self.options.seed)
            for shape in self.shapes
            for placement in self.placements
            for side in self.sides
        ]

    def calibration(self) -> tuple[Calibration, str]:
        """The calibration to predict from, and a text about its origin."""
        if (named := self.options.calibration_path) is not None:
            return calibration_file.read(named), f"costs of {named}"
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
        given = self.options
        if len([e for e in (given.from_path, given.model, given.graph) if e is not None]) > 1:
            raise UsageError("give --from, --model or --graph, one of them")
        if given.from_path is not None:
            job = sources.of_record(given.from_path, calibration)
        elif given.graph is not None:
            model = model_of_file(given.graph)
            job = sources.of_model(model, calibration, str(given.graph), given.batch_size)
        elif (given.model or (self.case and models.ONE_BIG)) == models.ONE_BIG:
            job = models.one_big(calibration.kernels)
        else:
            job = sources.of_calibrated(calibration, given.model or "ctr")
        if given.graph is None and given.batch_size not in (None, job.batch_size):
            raise UsageError(
                f"--batch-size is for --graph: {job.name} was measured with {job.batch_size}"
            )
        return job.having(**given.job_changes())


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
        lambda: json_text(answer.document()), lambda: terminal.show(shown.sections), lambda: shown
    )


def _answer(asked: Asked, questions: list[PredictionRequest], basis: Basis) -> PlanResult:
    if asked.sweep is not None:
        return PlanResult(basis, None, (), (), _curves(questions, asked.sweep), ())
    if (wanted := asked.options.steps_per_s) is not None:
        with ProgressDisplay("looking for clusters", 0, is_long=False) as progress:
            offers = search.smallest(questions, wanted, progress.activity)
        return PlanResult(basis, None, (), (), (), offers, wanted)
    total = sum(question.worker_steps for question in questions)
    with ProgressDisplay("simulating", total, is_long=False) as progress:
        predictions = list(zip(questions, answers(questions, progress.advance), strict=True))
        changes = []
        if not asked.options.no_changes:
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
