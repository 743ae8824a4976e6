"""`tensorwire k8s compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.cli.click_extensions import Number
from tensorwire.cli.k8s.options import (
    context_option,
    experiment_options,
    up_within_option,
)
from tensorwire.cli.options import json_option, report_option
from tensorwire.errors import UsageError

if TYPE_CHECKING:
    from tensorwire.k8s.layout_comparison import LayoutComparison


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s compare --case 1 --workers 4 --link 1gbit --report compare.html
  tensorwire k8s compare --case 2 --workers 10 --placement round_robin,balanced --rounds 3
  tensorwire k8s compare --case 2 --image REGISTRY/IMAGE --script train.py"""
)
@experiment_options
@click.option("--link", metavar="RATE", help="Link rate of each node in the lab, such as 1gbit.")
@click.option(
    "--seconds",
    type=Number(min=1, max=3600),
    default=20.0,
    show_default=True,
    help="Seconds to observe each job after all of its workers have begun to train.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Turns that the layouts take (A B, B A, …).",
)
@up_within_option
@context_option
@json_option
@report_option
def compare(
    plan: LayoutComparison,
    image: str | None,
    templates: Path | None,
    link: str | None,
    namespace: str | None,
    context: str | None,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Run both layouts of a case on the same model, and compare them.

    For each layout: steps a second, CPU, memory and traffic of every task, and what the doctor
    says. Without --image the jobs run in a lab on this machine, under Kubernetes' own control plane
    (requires root, and `make control-plane` in a clone of tensorwire). With --image they run on the
    cluster of your kubeconfig, and are removed afterwards. Without --script the job trains a model
    with most of its bytes in one embedding. It runs on grpc++, because the comparison uses the
    metrics of grpc++.

    After -- come the script's own arguments, as for `tensorwire k8s submit`.
    """
    from tensorwire.cli.measuring import keep_and_show
    from tensorwire.cli.termination import end_in_order
    from tensorwire.k8s import layout_comparison
    from tensorwire.lab.settings import LinkSettings, parse_link
    from tensorwire.report.progress import ProgressDisplay

    end_in_order()
    if image is None:
        of_a_cluster = {
            "--namespace": namespace,
            "--context": context,
            "--claim": plan.job.claims,
            "--token-secret": plan.job.own_token_secret,
        }
        if given := [option for option, value in of_a_cluster.items() if value]:
            raise UsageError(f"{' and '.join(given)}: only for a cluster, which also needs --image")
        from tensorwire.k8s.in_lab import LabStage

        rate = parse_link("--link", link) if link else LinkSettings()
        with (
            LabStage(rate, templates) as stage,
            ProgressDisplay("k8s compare", plan.blocks) as progress,
        ):
            record = layout_comparison.run(plan, stage, progress)
    else:
        if link:
            raise UsageError("--link is for the lab only: a cluster's nodes have their own links")
        from tensorwire.k8s.connection import Connection
        from tensorwire.k8s.in_cluster import ClusterStage

        with (
            Connection(context, namespace) as connection,
            ProgressDisplay("k8s compare", plan.blocks) as progress,
        ):
            record = layout_comparison.run(plan, ClusterStage(connection, templates), progress)
    keep_and_show(record, json_path, report_path)
