"""`tensorwire plan`: what a cluster would do."""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwire.cli.click_extensions import LazyGroup, refuse_unused, takes
from tensorwire.cli.options import Output
from tensorwire.cli.tensorflow import model_of_file
from tensorwire.dataclass_json import json_text
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option

if TYPE_CHECKING:
    from tensorwire.plan.cluster import Shape
    from tensorwire.plan.costs import Calibration
    from tensorwire.plan.job import JobModel
    from tensorwire.plan.plan_result import Basis, PlanResult
    from tensorwire.plan.prediction import PredictionRequest
    from tensorwire.plan.search import Curve, Range

COMMANDS = {
    "calibrate": (
        "tensorwire.bench.calibration.command:calibrate",
        "Measure the costs of a step on this machine, and store them.",
    )
}
_PUBLISHED_WORKER_CORES, _PUBLISHED_PS_CORES = 0.3, 2.0


@dataclass(frozen=True)
class PlanOptions:
    """The job, the cluster, and the question."""

    from_path: Path | None = option(
        None,
        "A recorded run: --json of bench train, of demo, or of doctor beside a running job.",
        name="--from",
        metavar="FILE.json",
    )
    model: str | None = option(
        None,
        "A model that was calibrated (ctr, flights), or one-big: one large parameter beside small "
        "ones, as in the published test.  [default: ctr; one-big with --case]",
        metavar="NAME",
    )
    graph: Path | None = option(
        None,
        "A SavedModel's folder, a .meta file, the prefix of a checkpoint, or a graph.pbtxt.",
        path="any",
    )
    batch_size: int | None = option(
        None, "Batch size: with --graph, replaces its unknown dimensions.", least=1
    )
    worker_cpu_ms: float | None = option(
        None, "CPU of a worker's own operations for a step.  [default: the job's]", least=0
    )
    workers: int = option(8, least=1, most=10000)
    ps: int = option(2, least=1, most=1000)
    layout: str = option(
        "isolated",
        "colocated (a ps and its share of the workers on each machine), isolated (ps on machines "
        "of their own), one-machine (a lab).",
        metavar="LIST",
    )
    link: str = option(
        "10gbit",
        "Link rate of each machine, in each direction: 10gbit, 500mbit, none.",
        metavar="RATE",
    )
    latency_us: float = option(25.0, "One-way network latency in microseconds.", least=0)
    cores: float = option(16.0, "Cores of each machine.", above=0)
    workers_per_node: int | None = option(
        None, "Isolated: workers that share a machine.  [default: 1; 10 with --case]", least=1
    )
    worker_cores: float | None = option(
        None,
        "Cores that a worker may use.  [default: all of its machine's; 0.3 with --case]",
        above=0,
    )
    ps_cores: float | None = option(
        None, "Cores that a ps may use.  [default: all of its machine's; 2 with --case]", above=0
    )
    ps_threads: int | None = option(None, "Communication threads of a ps.", least=1)
    protocols: str = option(
        "grpc,grpc++",
        'grpc, grpc++; "grpc++ fused" sends tensors together, "grpc++ exact" has all exact '
        "rewrites (of ctr and flights).",
        metavar="LIST",
    )
    placement: str = option(
        "round_robin,balanced", "round_robin, greedy or balanced.", metavar="LIST"
    )
    sync: bool = option(False, "Synchronous training, as SyncReplicasOptimizer.")
    stragglers: float = option(
        0.0,
        "Variation of a worker's compute time (sigma of its logarithm): 0.3 is about a third.",
        metavar="SIGMA",
        least=0,
        most=2,
    )
    input_rate: float | None = option(
        None, "Examples per second that the input delivers to one worker.", above=0
    )
    sweep: str | None = option(
        None, "Predict a curve and its knee; or ps=1..20.", metavar="workers=1..1000"
    )
    case: str | None = option(
        None, "A case of the published table, both of its scenarios.", metavar="1..4"
    )
    steps_per_s: float | None = option(
        None, "Find the cluster with the fewest cores that reaches this rate.", above=0
    )
    calibration_path: Path | None = option(
        None,
        "Calibration file of another machine.  [default: this user's, else the shipped one]",
        name="--calibration",
        metavar="FILE.json",
    )
    seed: int = option(0, "Random seed.")
    no_changes: bool = option(False, "Do not search for improvements, which takes longer.")

    def job_changes(self) -> dict[str, Any]:
        """Fields of the job that options set."""
        changes = {
            "straggler_sigma": self.stragglers,
            "training": "sync" if self.sync else None,
            "input_examples_per_s": self.input_rate,
            "worker_cpu_s": None if self.worker_cpu_ms is None else self.worker_cpu_ms / 1e3,
        }
        return {name: value for name, value in changes.items() if value is not None}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    invoke_without_command=True,
    subcommand_metavar="[calibrate]",
    epilog="""\b
Examples:
  tensorwire plan --model ctr --workers 50 --ps 5 --layout isolated --link 10gbit
  tensorwire plan --from run.json --protocols grpc,grpc++ --placement round_robin,balanced --ps 5
  tensorwire plan --graph model.ckpt-1000.meta --batch-size 256 --sweep workers=1..1000 --ps 10
  tensorwire plan --case 2 --report plan.html
  tensorwire plan --model ctr --steps-per-s 5000""",
)
@takes(PlanOptions, "options")
@takes(Output, "output")
@click.pass_context
def plan(context: click.Context, /, options: PlanOptions, output: Output) -> None:
    """Predict steps per second, loads and the bottleneck of a cluster that does not exist yet.

    Simulates the cluster with costs that `tensorwire plan calibrate` measured on one machine.
    """
    if context.invoked_subcommand is not None:
        return
    if importlib.util.find_spec("simpy") is None:
        raise TensorwireError("the planner needs simpy: pip install 'tensorwire[plan]'")
    from tensorwire.placement.plan import STRATEGIES
    from tensorwire.plan.costs import SIDES
    from tensorwire.plan.plan_result import Basis
    from tensorwire.plan.prediction import PredictionRequest
    from tensorwire.plan.search import parse
    from tensorwire.report import plan as report
    from tensorwire.report import terminal

    shapes = _shapes(options)
    sides = _list("protocols", options.protocols, SIDES)
    placements = _list("placement", options.placement, tuple(STRATEGIES))
    sweep = None if options.sweep is None else parse(options.sweep)
    # Files are read when nothing is wrong with the options.
    calibration, origin = _calibration(options.calibration_path)
    job = _job(options, calibration)
    questions = [
        PredictionRequest(job, calibration, side, placement, shape, options.seed)
        for shape in shapes
        for placement in placements
        for side in sides
    ]
    answer = _answer(options, questions, sweep, Basis(origin, questions[0]))
    shown = report.page(answer)
    output.give(
        lambda: json_text(answer.document()), lambda: terminal.show(shown.sections), lambda: shown
    )


def _shapes(options: PlanOptions) -> list[Shape]:
    """A cluster for each layout.

    Raises:
        UsageError: options contradict each other or name something unknown.
    """
    from tensorwire.k8s.layout import PUBLISHED, find_case
    from tensorwire.plan.cluster import LAYOUTS, SCENARIOS, Shape, link_bytes_per_s

    if options.case is not None:
        refuse_unused("and --case exclude each other", "workers", "ps", "layout")
    questions = {
        "--sweep": options.sweep,
        "--case": options.case,
        "--steps-per-s": options.steps_per_s,
    }
    if len(wanted := [name for name, value in questions.items() if value is not None]) > 1:
        raise UsageError(f"{wanted[0]} and {wanted[1]}: one question at a time")
    case = None if options.case is None else find_case(options.case, PUBLISHED, "")
    layouts = SCENARIOS if case else _list("layout", options.layout, LAYOUTS)
    shape = Shape(
        workers=case.workers if case else options.workers,
        ps=case.ps if case else options.ps,
        cores=options.cores,
        link_bytes_per_s=link_bytes_per_s(options.link),
        workers_per_host=options.workers_per_node or (case.workers_per_node if case else 1),
        worker_cores=options.worker_cores or (_PUBLISHED_WORKER_CORES if case else None),
        ps_cores=options.ps_cores or (_PUBLISHED_PS_CORES if case else None),
        ps_threads=options.ps_threads,
        latency_s=options.latency_us * 1e-6,
    )
    return [dataclasses.replace(shape, layout=layout) for layout in layouts]


def _list(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    for each in named:
        if each not in known:
            raise UsageError(f"--{option}: unknown value {each}: choose from {', '.join(known)}")
    if not named:
        raise UsageError(f"--{option} is empty: choose from {', '.join(known)}")
    return named


def _calibration(named: Path | None) -> tuple[Calibration, str]:
    """The calibration to predict from, and a text about its origin."""
    from tensorwire.plan import calibration_file

    if named is not None:
        return calibration_file.read(named), f"costs of {named}"
    own = calibration_file.own_path()
    if own.exists():
        return calibration_file.read(own), "this user's own calibration"
    return calibration_file.read(calibration_file.SHIPPED), (
        "the calibration shipped with tensorwire, from another, maybe slower machine: "
        "`tensorwire plan calibrate` measures this one"
    )


def _job(given: PlanOptions, calibration: Calibration) -> JobModel:
    """The job that is asked about.

    Raises:
        TensorwireError: a file cannot be read, or has wrong contents.
    """
    from tensorwire.plan import sources

    if len([e for e in (given.from_path, given.model, given.graph) if e is not None]) > 1:
        raise UsageError("give --from, --model or --graph, one of them")
    if given.from_path is not None:
        job = sources.of_record(given.from_path, calibration)
    elif given.graph is not None:
        model = model_of_file(given.graph)
        job = sources.of_model(model, calibration, str(given.graph), given.batch_size)
    elif (given.model or (given.case and sources.ONE_BIG)) == sources.ONE_BIG:
        job = sources.one_big(calibration.kernels)
    else:
        job = sources.of_calibrated(calibration, given.model or "ctr")
    if given.graph is None and given.batch_size not in (None, job.batch_size):
        raise UsageError(
            f"--batch-size is for --graph: {job.name} was measured with {job.batch_size}"
        )
    return job.having(**given.job_changes())


def _answer(
    options: PlanOptions, questions: list[PredictionRequest], sweep: Range | None, basis: Basis
) -> PlanResult:
    """Predicts.

    Raises:
        TensorwireError: the question has no answer.
    """
    from tensorwire.plan import search
    from tensorwire.plan.plan_result import PlanResult
    from tensorwire.plan.prediction import answers
    from tensorwire.report.progress import ProgressDisplay

    if sweep is not None:
        return PlanResult(basis, curves=_curves(questions, sweep))
    if (wanted := options.steps_per_s) is not None:
        with ProgressDisplay("looking for clusters", 0, is_long=False) as progress:
            offers = search.smallest(questions, wanted, progress.activity)
        return PlanResult(basis, offers=offers, target_steps_per_s=wanted)
    total = sum(question.worker_steps for question in questions)
    with ProgressDisplay("simulating", total, is_long=False) as progress:
        predictions = list(zip(questions, answers(questions, progress.advance), strict=True))
        changes = []
        if not options.no_changes:
            changes = search.changes(
                *predictions[0], predictions, lambda text: progress.activity(f"if: {text}")
            )
    return PlanResult(basis, options.case, predictions, changes)


def _curves(
    questions: list[PredictionRequest], over: Range
) -> list[tuple[PredictionRequest, Curve]]:
    from tensorwire.plan import search
    from tensorwire.report import plan as report
    from tensorwire.report.progress import ProgressDisplay

    curves = []
    total = len(questions) * len(over.points())
    with ProgressDisplay("sweeping", total, is_long=False) as progress:
        for question in questions:

            def asking(number: int, of: PredictionRequest = question) -> None:
                progress.activity(f"{report.name(of)}: {number} {over.what}")
                progress.advance()

            curves.append((question, search.sweep(question, over, asking)))
    return curves
