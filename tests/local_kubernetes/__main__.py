"""`make k8s-compare`: `tensorwire k8s compare` without a cluster, in a lab on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from local_kubernetes.job_runner import LabJobRunner
from tensorwire.bench.frame import showing
from tensorwire.bench.lab import HostSettings
from tensorwire.bench.layouts import layout_comparison
from tensorwire.bench.layouts.command import comparison_options
from tensorwire.cli.main import end_in_order, run_command
from tensorwire.cli.options import Output
from tensorwire.errors import UsageError
from tensorwire.report.progress import ProgressDisplay
from tensorwire.units import RATE_EXAMPLE, parse_rate


@click.command()
@comparison_options
@click.option("--link", metavar="RATE", help="Link rate of each node, such as 1gbit.")
def compare(
    plan: layout_comparison.LayoutComparison,
    image: str | None,
    templates: Path | None,
    link: str | None,
    context: str | None,
    output: Output,
) -> None:
    """`tensorwire k8s compare` in a lab, under Kubernetes' own control plane.

    Requires root, and `make control-plane`.
    """
    end_in_order()
    of_a_cluster = {
        "--image": image,
        "--namespace": plan.job.namespace,
        "--context": context,
        "--claim": plan.job.claims,
        "--token-secret": plan.job.own_token_secret,
        "--pod-template": plan.job.pod_templates,
        "--annotation": plan.job.annotations,
    }
    if given := [option for option, value in of_a_cluster.items() if value]:
        raise UsageError(f"{' and '.join(given)}: only for a cluster (tensorwire k8s compare)")
    rate = HostSettings(None if link is None else _bits_per_s(link))
    with (
        LabJobRunner(rate, templates) as runner,
        ProgressDisplay(layout_comparison.COMMAND, plan.blocks) as progress,
    ):
        record = layout_comparison.run(plan, runner, progress)
    showing.give(record, output)


def _bits_per_s(link: str) -> float:
    if rate := parse_rate(link):
        return rate
    raise UsageError(f"--link {link} is not understood: write it as {RATE_EXAMPLE}")


if __name__ == "__main__":
    run_command(compare, "k8s-compare")
