"""`tensorwire plan`, and the question that its options make."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import TYPE_CHECKING

import click

from tensorwire.cli.click_extensions import LazyGroup, refuse_unused, takes
from tensorwire.cli.options import Output
from tensorwire.cli.plan.options import PlanOptions
from tensorwire.errors import TensorwireError, UsageError

if TYPE_CHECKING:
    from tensorwire.cli.plan.prediction import Asked

COMMANDS = {
    "calibrate": (
        "tensorwire.bench.calibration.command:calibrate",
        "Measure the costs of a step on this machine, and store them.",
    )
}
_PUBLISHED_WORKER_CORES, _PUBLISHED_PS_CORES = 0.3, 2.0


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
    from tensorwire.cli.plan import prediction

    prediction.give(read(options), output)


def read(options: PlanOptions) -> Asked:
    """Checks the options.

    Raises:
        UsageError: options contradict each other or name something unknown.
    """
    from tensorwire.cli.plan.prediction import Asked
    from tensorwire.k8s.layout import PUBLISHED, find_case
    from tensorwire.placement.plan import STRATEGIES
    from tensorwire.plan.cluster import LAYOUTS, SCENARIOS, Shape, link_bytes_per_s
    from tensorwire.plan.costs import SIDES
    from tensorwire.plan.search import parse

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
    return Asked(
        options,
        shapes=tuple(dataclasses.replace(shape, layout=layout) for layout in layouts),
        sides=_list("protocols", options.protocols, SIDES),
        placements=_list("placement", options.placement, tuple(STRATEGIES)),
        sweep=None if options.sweep is None else parse(options.sweep),
        case=None if case is None else case.name,
    )


def _list(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    for each in named:
        if each not in known:
            raise UsageError(f"--{option}: unknown value {each}: choose from {', '.join(known)}")
    if not named:
        raise UsageError(f"--{option} is empty: choose from {', '.join(known)}")
    return named
