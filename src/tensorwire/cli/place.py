"""`tensorwire place`: which variable lands on which ps under each strategy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from tensorwire import __version__
from tensorwire.cli.click_extensions import Number
from tensorwire.cli.options import json_option, report_option
from tensorwire.cli.tensorflow import check_script, model_of_file
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.files import write_whole
from tensorwire.placement.plan import STRATEGIES, Model
from tensorwire.placement.traffic import ASSUMED_BATCH


@click.command(
    context_settings={"allow_interspersed_args": True},
    epilog="""\b
Examples:
  tensorwire place --graph model.ckpt-1000.meta --ps 5
  tensorwire place --script train.py --ps 5 --traffic run.json -- --job_name worker""",
)
@click.option(
    "--graph",
    type=click.Path(path_type=Path),
    help="A SavedModel's folder, a .meta file, the prefix of a checkpoint, or a graph.pbtxt.",
)
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    help="Run this script up to its first training step; no server and no other task is needed.",
)
@click.option("--ps", type=click.IntRange(min=1), required=True, help="Number of ps.")
@click.option(
    "--traffic",
    "traffic_paths",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Traffic of an earlier run: metrics of each ps (docs/metrics.md), or bytes per step of "
    "each variable (docs/placement.md).",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=ASSUMED_BATCH,
    show_default=True,
    help="Batch size: replaces unknown dimensions of the graph, without --traffic.",
)
@click.option(
    "--exact-rewrites",
    is_flag=True,
    help="The job runs with exact rewrites: each id of a batch and its row move once.",
)
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(tuple(STRATEGIES)),
    multiple=True,
    help="May be given more than once.  [default: all]",
)
@click.option(
    "--keep-whole",
    "keep_whole",
    metavar="NAME",
    multiple=True,
    help="Variable name or pattern that balanced does not split.",
)
@click.option(
    "--deadline",
    "deadline_s",
    type=Number(min=1),
    default=120.0,
    show_default=True,
    help="Seconds that --script may take.",
)
@json_option
@report_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT'S ARGUMENTS]")
def place(
    graph: Path | None,
    script: Path | None,
    ps: int,
    traffic_paths: tuple[Path, ...],
    batch: int,
    exact_rewrites: bool,
    strategies: tuple[str, ...],
    keep_whole: tuple[str, ...],
    deadline_s: float,
    json_path: Path | None,
    report_path: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Show which variable lands on which ps under each strategy, and the resulting load.

    Optimizer slots count with their variable. Without a TF_CONFIG, the script runs as the chief of
    a cluster with --ps ps.
    """
    from tensorwire.placement import plan
    from tensorwire.placement.traffic import Traffic
    from tensorwire.report import placement, terminal

    if (graph is None) == (script is None):
        raise UsageError("give --graph or --script, one of them")
    if arguments and script is None:
        raise UsageError(f"{arguments[0]}: only --script takes arguments")
    if graph is not None:
        model = model_of_file(graph)
    else:
        assert script is not None
        model = _of_script(script, arguments, ps, deadline_s)
    variables = plan.whole(model.variables, keep_whole)
    traffic = Traffic.known(traffic_paths, model.crossings, batch, exact_rewrites=exact_rewrites)
    chosen = strategies or tuple(STRATEGIES)
    plans = [STRATEGIES[name](variables, ps, traffic) for name in chosen]
    section = placement.section(plans, model.unknown_operations)
    if json_path is not None:
        write_whole(json_path, plan.to_json({"ps": ps, "plans": [p.to_document() for p in plans]}))
    if report_path is not None:
        from tensorwire.report import page
        from tensorwire.report.section import Report

        headlines = [section.headline] if section.headline else []
        facts = [f"tensorwire {__version__}", str(graph or script)]
        page.write(report_path, Report("tensorwire place", facts, [section], headlines))
    terminal.show([section])


def _of_script(script: Path, arguments: tuple[str, ...], ps: int, deadline_s: float) -> Model:
    from tensorwire.run import dry_run

    check_script(script)
    environment = {**os.environ}
    if "TF_CONFIG" not in environment:
        # The dry run connects to none of these addresses.
        cluster = {
            "chief": ["127.0.0.1:1"],
            "worker": ["127.0.0.1:2"],
            "ps": [f"127.0.0.1:{3 + task}" for task in range(ps)],
        }
        task = {"type": "chief", "index": 0}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    found = dry_run.model_of_script([str(script), *arguments], environment, deadline_s)
    if not found.variables:
        raise TensorwireError(
            f"{script} made no variable for a ps: give it the arguments of its worker 0 after --"
        )
    return found
