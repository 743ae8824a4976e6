"""`tensorwire place`: which variable lands on which ps under each strategy."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tensorwire import __version__
from tensorwire.cli.click_extensions import takes
from tensorwire.cli.options import Output
from tensorwire.cli.tensorflow import check_script, model_of_file
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.placement.plan import STRATEGIES, Model
from tensorwire.placement.traffic import ASSUMED_BATCH


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """What is placed, and how."""

    graph: Path | None = option(
        None,
        "A SavedModel's folder, a .meta file, the prefix of a checkpoint, or a graph.pbtxt.",
        path="any",
    )
    script: Path | None = option(
        None,
        "Run this script up to its first training step; no server and no other task is needed.",
        path="any",
    )
    ps: int = option(..., "Number of ps.", least=1)
    traffic_paths: Sequence[Path] = option(
        (),
        "Traffic of an earlier run: metrics of each ps (docs/metrics.md), or bytes per step of "
        "each variable (docs/placement.md).",
        name="--traffic",
        path="any",
        repeated=True,
    )
    batch_size: int = option(
        ASSUMED_BATCH,
        "Batch size: replaces unknown dimensions of the graph, without --traffic.",
        least=1,
    )
    exact_rewrites: bool = option(
        False, "The job runs with exact rewrites: each id of a batch and its row move once."
    )
    strategies: Sequence[str] = option(
        (),
        "May be given more than once.  [default: all]",
        name="--placement",
        choices=tuple(STRATEGIES),
        repeated=True,
    )
    keep_whole: Sequence[str] = option(
        (), "Variable name or pattern that balanced does not split.", metavar="NAME", repeated=True
    )
    timeout_s: float = option(120.0, "Seconds that --script may take.", name="--timeout", least=1)

    def __post_init__(self) -> None:
        if (self.graph is None) == (self.script is None):
            raise UsageError("give --graph or --script, one of them")


@click.command(
    context_settings={"allow_interspersed_args": True},
    epilog="""\b
Examples:
  tensorwire place --graph model.ckpt-1000.meta --ps 5
  tensorwire place --script train.py --ps 5 --traffic run.json -- --job_name worker""",
)
@takes(PlaceOptions, "options")
@takes(Output, "output")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT'S ARGUMENTS]")
def place(options: PlaceOptions, output: Output, arguments: tuple[str, ...]) -> None:
    """Show which variable lands on which ps under each strategy, and the resulting load.

    Optimizer slots count with their variable. Without a TF_CONFIG, the script runs as the chief of
    a cluster with --ps ps.
    """
    from tensorwire.placement import plan
    from tensorwire.placement.traffic import Traffic
    from tensorwire.report import placement, terminal
    from tensorwire.report.section import Report

    if options.graph is not None:
        if arguments:
            raise UsageError(f"{arguments[0]}: only --script takes arguments")
        model = model_of_file(options.graph)
    else:
        model = _model_of_script(options, arguments)
    variables = plan.whole(model.variables, options.keep_whole)
    traffic = Traffic.known(
        options.traffic_paths,
        model.crossings,
        options.batch_size,
        exact_rewrites=options.exact_rewrites,
    )
    chosen = options.strategies or tuple(STRATEGIES)
    plans = [STRATEGIES[name](variables, options.ps, traffic) for name in chosen]
    section = placement.section(plans, model.unknown_operations)
    headlines = [section.headline] if section.headline else []
    facts = [f"tensorwire {__version__}", str(options.graph or options.script)]
    documents = [each.to_document() for each in plans]
    output.give(
        lambda: json.dumps({"ps": options.ps, "plans": documents}, indent=1) + "\n",
        lambda: terminal.show([section]),
        lambda: Report("tensorwire place", facts, [section], headlines),
    )


def _model_of_script(options: PlaceOptions, arguments: tuple[str, ...]) -> Model:
    from tensorwire.run import dry_run

    script = options.script
    assert script is not None

    check_script(script)
    environment = {**os.environ}
    if "TF_CONFIG" not in environment:
        # The dry run connects to none of these addresses.
        cluster = {
            "chief": ["127.0.0.1:1"],
            "worker": ["127.0.0.1:2"],
            "ps": [f"127.0.0.1:{3 + task}" for task in range(options.ps)],
        }
        task = {"type": "chief", "index": 0}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    found = dry_run.model_of_script([str(script), *arguments], environment, options.timeout_s)
    if not found.variables:
        raise TensorwireError(
            f"{script} made no variable for a ps: give it the arguments of its worker 0 after --"
        )
    return found
