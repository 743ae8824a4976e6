"""The options of `tensorwire plan`, and the question that they make."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwire.cli.click_extensions import LazyGroup, Number, refuse_unused, takes
from tensorwire.cli.options import Output
from tensorwire.errors import TensorwireError, UsageError

if TYPE_CHECKING:
    from tensorwire.cli.plan.prediction import Asked

COMMANDS = {
    "calibrate": (
        "tensorwire.bench.calibration.command:calibrate",
        "Measure the costs of a step on this machine, and store them.",
    ),
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
@click.option(
    "--from",
    "from_path",
    metavar="FILE.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A recorded run: --json of bench train, of demo, or of doctor beside a running job.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="A model that was calibrated (ctr, flights), or one-big: one large parameter beside small "
    "ones, as in the published test.",
)
@click.option(
    "--graph",
    type=click.Path(path_type=Path),
    help="A SavedModel's folder, a .meta file, the prefix of a checkpoint, or a graph.pbtxt.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Batch size: with --graph, replaces its unknown dimensions.",
)
@click.option(
    "--worker-cpu-ms",
    type=Number(min=0),
    help="CPU of a worker's own operations for a step.  [default: the job's]",
)
@click.option("--workers", type=click.IntRange(min=1, max=10000), default=8, show_default=True)
@click.option("--ps", type=click.IntRange(min=1, max=1000), default=2, show_default=True)
@click.option(
    "--layout",
    metavar="LIST",
    default="isolated",
    show_default=True,
    help="colocated (a ps and its share of the workers on each machine), isolated (ps on machines "
    "of their own), one-machine (a lab).",
)
@click.option(
    "--link",
    metavar="RATE",
    default="10gbit",
    show_default=True,
    help="Link rate of each machine, in each direction: 10gbit, 500mbit, none.",
)
@click.option(
    "--latency-us",
    type=Number(min=0),
    default=25.0,
    show_default=True,
    help="One-way network latency in microseconds.",
)
@click.option(
    "--cores",
    type=Number(min=0, min_open=True),
    default=16.0,
    show_default=True,
    help="Cores of each machine.",
)
@click.option(
    "--workers-per-node",
    type=click.IntRange(min=1),
    help="Isolated: workers that share a machine.  [default: 1; 10 with --case]",
)
@click.option(
    "--worker-cores",
    type=Number(min=0, min_open=True),
    help="Cores that a worker may use.  [default: all of its machine's; 0.3 with --case]",
)
@click.option(
    "--ps-cores",
    type=Number(min=0, min_open=True),
    help="Cores that a ps may use.  [default: all of its machine's; 2 with --case]",
)
@click.option("--ps-threads", type=click.IntRange(min=1), help="Communication threads of a ps.")
@click.option(
    "--protocols",
    metavar="LIST",
    default="grpc,grpc++",
    show_default=True,
    help='grpc, grpc++; "grpc++ fused" sends tensors together, "grpc++ exact" has all exact '
    "rewrites (of ctr and flights).",
)
@click.option(
    "--placement",
    metavar="LIST",
    default="round_robin,balanced",
    show_default=True,
    help="round_robin, greedy or balanced.",
)
@click.option("--sync", is_flag=True, help="Synchronous training, as SyncReplicasOptimizer.")
@click.option(
    "--stragglers",
    type=Number(min=0, max=2),
    default=0.0,
    metavar="SIGMA",
    help="Variation of a worker's compute time (sigma of its logarithm): 0.3 is about a third.",
)
@click.option(
    "--input-rate",
    type=Number(min=0, min_open=True),
    help="Examples per second that the input delivers to one worker.",
)
@click.option(
    "--sweep", metavar="workers=1..1000", help="Predict a curve and its knee; or ps=1..20."
)
@click.option(
    "--case", metavar="1..4", help="A case of the published table, both of its scenarios."
)
@click.option(
    "--steps-per-s",
    type=Number(min=0, min_open=True),
    metavar="STEPS/S",
    help="Find the cluster with the fewest cores that reaches this rate.",
)
@click.option(
    "--calibration",
    "calibration_path",
    metavar="FILE.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Calibration file of another machine.  [default: this user's, else the shipped one]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option(
    "--no-changes", is_flag=True, help="Do not search for improvements, which takes longer."
)
@takes(Output, "output")
@click.pass_context
def plan(context: click.Context, /, output: Output, **options: Any) -> None:
    """Predict steps per second, loads and the bottleneck of a cluster that does not exist yet.

    Simulates the cluster with costs that `tensorwire plan calibrate` measured on one machine.
    """
    if context.invoked_subcommand is not None:
        return
    if importlib.util.find_spec("simpy") is None:
        raise TensorwireError("the planner needs simpy: pip install 'tensorwire[plan]'")
    from tensorwire.cli.plan import prediction

    prediction.give(read(options), output)


def read(options: dict[str, Any]) -> Asked:
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

    if options["case"] is not None:
        refuse_unused("and --case exclude each other", "workers", "ps", "layout")
    wanted = [name for name in ("sweep", "case", "steps_per_s") if options[name] is not None]
    if len(wanted) > 1:
        first, second = (name.replace("_", "-") for name in wanted[:2])
        raise UsageError(f"--{first} and --{second}: one question at a time")
    case = None if options["case"] is None else find_case(options["case"], PUBLISHED, "")
    layouts = SCENARIOS if case else _list("layout", options["layout"], LAYOUTS)
    shape = Shape(
        workers=case.workers if case else options["workers"],
        ps=case.ps if case else options["ps"],
        cores=options["cores"],
        link_bytes_per_s=link_bytes_per_s(options["link"]),
        workers_per_host=options["workers_per_node"] or (case.workers_per_node if case else 1),
        worker_cores=options["worker_cores"] or (_PUBLISHED_WORKER_CORES if case else None),
        ps_cores=options["ps_cores"] or (_PUBLISHED_PS_CORES if case else None),
        ps_threads=options["ps_threads"],
        latency_s=options["latency_us"] * 1e-6,
    )
    return Asked(
        from_path=options["from_path"],
        model=options["model"],
        graph=options["graph"],
        batch=options["batch_size"],
        calibration_path=options["calibration_path"],
        shapes=tuple(dataclasses.replace(shape, layout=layout) for layout in layouts),
        sides=_list("protocols", options["protocols"], SIDES),
        placements=_list("placement", options["placement"], tuple(STRATEGIES)),
        job_changes=_job_changes(options),
        sweep=None if options["sweep"] is None else parse(options["sweep"]),
        case=None if case is None else case.name,
        target_steps_per_s=options["steps_per_s"],
        seed=options["seed"],
        with_changes=not options["no_changes"],
    )


def _job_changes(options: dict[str, Any]) -> dict[str, Any]:
    """Fields of the job that options set."""
    changes: dict[str, Any] = {"straggler_sigma": options["stragglers"]}
    if options["sync"]:
        changes["training"] = "sync"
    if options["input_rate"] is not None:
        changes["input_examples_per_s"] = options["input_rate"]
    if options["worker_cpu_ms"] is not None:
        changes["worker_cpu_s"] = options["worker_cpu_ms"] / 1e3
    return changes


def _list(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    for each in named:
        if each not in known:
            raise UsageError(f"--{option}: unknown value {each}: choose from {', '.join(known)}")
    if not named:
        raise UsageError(f"--{option} is empty: choose from {', '.join(known)}")
    return named
