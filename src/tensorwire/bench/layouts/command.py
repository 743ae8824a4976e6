"""`tensorwire k8s compare`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwire.cli.click_extensions import takes
from tensorwire.cli.k8s.commands import common, job_fields, taken
from tensorwire.cli.options import Output
from tensorwire.errors import UsageError
from tensorwire.k8s.job import Job, Script
from tensorwire.k8s.layout import find_case, known_cases
from tensorwire.options import option
from tensorwire.placement.plan import STRATEGIES

if TYPE_CHECKING:
    from tensorwire.bench.layouts.layout_comparison import LayoutComparison


@dataclass(frozen=True)
class CompareOptions:
    """The comparison, and what differs from the options of `k8s submit`."""

    case: str = option(..., "A published case (1 to 4), or one of --cases.")
    workers: int | None = option(
        None, "Number of workers, if fewer than the case has (for a small machine).", least=1
    )
    placement: str = option(
        "round_robin",
        f"Where variables go, as in `tensorwire run`: {', '.join(STRATEGIES)}; several take turns.",
        metavar="LIST",
    )
    script: str | None = option(
        None,
        "A training script, as for `k8s submit`, that trains until it is stopped.  "
        "[default: a built-in one with one big variable]",
    )
    image: str | None = option(None, "Container image with tensorwire and TensorFlow.")
    name: str = option("compare", "Name of the job.")
    seconds: float = option(
        20.0,
        "Seconds to observe each job after all of its workers have begun to train.",
        least=1,
        most=3600,
    )
    rounds: int = option(1, "Turns that the layouts take (A B, B A, …).", least=1)

    @property
    def placements(self) -> tuple[str, ...]:
        """Raises UsageError for an unknown or a repeated placement."""
        names = tuple(name.strip() for name in self.placement.split(",") if name.strip())
        for name in names:
            if name not in STRATEGIES:
                raise UsageError(f"unknown placement {name!r}: choose from {', '.join(STRATEGIES)}")
        if not names or len(set(names)) < len(names):
            raise UsageError(f"--placement {self.placement}: name one, or several once each")
        return names


# Fields of a job that the comparison sets itself.
_OWN = (
    *("image", "script", "layout", "shared_memory", "scheduling", "placement", "name"),
    *("wanted_workers_per_node", "format", "queue", "volcano_queue", "evaluator", "protocol"),
    *("metrics_from", "keep_whole"),
)


def comparison_options(command: Callable[..., Any]) -> Any:
    """The options of a comparison of layouts, on a cluster or in the lab of a clone.

    The command gets `plan`, `image`, `templates`, `context` and `output`.
    """

    @functools.wraps(command)
    def with_plan(
        *, given: CompareOptions, cases_file: Path | None, timeout: float, **options: Any
    ) -> Any:
        from tensorwire.bench.layouts import layout_comparison

        found = find_case(given.case, known_cases(cases_file))
        script = layout_comparison.hot_model()
        if given.script:
            script = Script.named(given.script, has_image=bool(given.image))
        job = Job(
            **taken(options),
            name=given.name,
            image=given.image or "image",  # in the lab of a clone, tasks run on this machine
            script=script,
            case=found.name,
            workers=given.workers or found.workers,
            ps=found.ps,
            metrics_from="*",  # they are read through the API server, which is in no namespace
            wanted_workers_per_node=layout_comparison.workers_per_node(found, given.workers),
        )
        plan = layout_comparison.LayoutComparison(
            found, job, given.placements, given.rounds, given.seconds, up_within_s=timeout
        )
        return command(plan=plan, image=given.image, **options)

    made = takes(Output, "output")(with_plan)
    made = common("cases_file", "timeout", "context")(job_fields(_OWN)(made))
    return takes(CompareOptions, "given")(made)


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
    from tensorwire.cli.main import end_in_order
    from tensorwire.k8s.connection import Connection
    from tensorwire.report.progress import ProgressDisplay

    end_in_order()
    with (
        Connection(context, plan.job.namespace) as connection,
        ProgressDisplay(layout_comparison.COMMAND, plan.blocks) as progress,
    ):
        record = layout_comparison.run(plan, JobRunner(connection, templates), progress)
    showing.give(record, output)
