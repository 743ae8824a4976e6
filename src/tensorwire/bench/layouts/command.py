"""`tensorwire k8s compare`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwire.cli.click_extensions import Number, takes
from tensorwire.cli.k8s.options import (
    cases_option,
    compared_options,
    context_option,
    find_named_case,
    taken,
    timeout_option,
)
from tensorwire.cli.options import Output
from tensorwire.errors import UsageError
from tensorwire.k8s.job import Job
from tensorwire.k8s.spec import Script
from tensorwire.placement.plan import STRATEGIES

if TYPE_CHECKING:
    from tensorwire.bench.layouts.layout_comparison import LayoutComparison

_OF_CASE = [
    click.option("--case", required=True, help="A published case (1 to 4), or one of --cases."),
    cases_option,
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Number of workers, if fewer than the case has (for a small machine).",
    ),
    click.option(
        "--placement",
        metavar="LIST",
        default="round_robin",
        show_default=True,
        help=f"Where variables go, as in `tensorwire run`: {', '.join(STRATEGIES)}; several take "
        "turns.",
    ),
    click.option(
        "--script",
        help="A training script, as for `k8s submit`, that trains until it is stopped.  "
        "[default: a built-in one with one big variable]",
    ),
    click.option("--image", help="Container image with tensorwire and TensorFlow."),
    click.option("--name", default="compare", show_default=True, help="Name of the job."),
]
# Fields of a job that the comparison sets itself.
_OWN = (
    *("name", "image", "script", "layout", "shared_memory", "scheduling", "placement"),
    *("wanted_workers_per_node", "format", "queue", "volcano_queue", "evaluator", "protocol"),
    *("metrics_from", "keep_whole"),
)


def _experiment_options(command: Callable[..., Any]) -> Any:
    """The options of an experiment. The command gets `plan`, `image` and `templates`."""

    @functools.wraps(command)
    def with_plan(
        *,
        case: str,
        cases_file: Path | None,
        workers: int | None,
        placement: str,
        script: str | None,
        image: str | None,
        rounds: int,
        seconds: float,
        timeout: float,
        **options: Any,
    ) -> Any:
        from tensorwire.bench.layouts import layout_comparison

        found = find_named_case(case, cases_file)
        job = Job(
            **taken(options),
            image=image or "image",  # in the lab of a clone, tasks run on this machine
            script=Script.named(script, has_image=bool(image))
            if script
            else layout_comparison.hot_model(),
            case=found.name,
            workers=workers or found.workers,
            ps=found.ps,
            metrics_from="*",  # they are read through the API server, which is in no namespace
            wanted_workers_per_node=layout_comparison.workers_per_node(found, workers),
        )
        plan = layout_comparison.LayoutComparison(
            found, job, _placements(placement), rounds, seconds, up_within_s=timeout
        )
        return command(plan=plan, image=image, **options)

    return compared_options(_OWN, _OF_CASE)(with_plan)


def _placements(text: str) -> tuple[str, ...]:
    """Parses "round_robin,balanced". Raises UsageError for an unknown or a repeated placement."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in STRATEGIES:
            raise UsageError(f"unknown placement {name!r}: choose from {', '.join(STRATEGIES)}")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--placement {text}: name one, or several once each")
    return names


_OPTIONS = [
    _experiment_options,
    click.option(
        "--seconds",
        type=Number(min=1, max=3600),
        default=20.0,
        show_default=True,
        help="Seconds to observe each job after all of its workers have begun to train.",
    ),
    click.option(
        "--rounds",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Turns that the layouts take (A B, B A, …).",
    ),
    timeout_option,
    context_option,
    takes(Output, "output"),
]


def comparison_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a comparison of layouts, on a cluster or in the lab of a clone."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s compare --case 1 --image REGISTRY/IMAGE --script train.py --report compare.html
  tensorwire k8s compare --case 2 --placement round_robin,balanced --rounds 3 --image IMAGE"""
)
@comparison_options
def compare(
    plan: LayoutComparison,
    image: str | None,
    templates: Path | None,
    namespace: str | None,
    context: str | None,
    output: Output,
) -> None:
    """Run both layouts of a case on the same model, and compare them.

    For each layout: steps a second, CPU, memory and traffic of every task, and what the doctor
    says. The jobs run on the cluster of your kubeconfig, and are removed afterwards. Without
    --script they train a model with most of its bytes in one embedding. They run on grpc++, because
    the comparison uses the metrics of grpc++.

    After -- come the script's own arguments, as for `tensorwire k8s submit`.

    Without a cluster: `make k8s-compare` in a clone of tensorwire.
    """
    if image is None:
        raise UsageError(
            "k8s compare runs on a cluster: give --image. Without a cluster, `make k8s-compare` in "
            "a clone of tensorwire runs the jobs on this machine",
            page="docs/kubernetes.md",
        )
    from tensorwire.bench.frame import showing
    from tensorwire.bench.layouts import layout_comparison
    from tensorwire.bench.layouts.job_runner import JobRunner
    from tensorwire.cli.termination import end_in_order
    from tensorwire.k8s.connection import Connection
    from tensorwire.report.progress import ProgressDisplay

    end_in_order()
    with (
        Connection(context, namespace) as connection,
        ProgressDisplay(layout_comparison.COMMAND, plan.blocks) as progress,
    ):
        record = layout_comparison.run(plan, JobRunner(connection, templates), progress)
    showing.give(record, output)
