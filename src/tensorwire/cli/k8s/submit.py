"""`tensorwire k8s submit`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.cli.k8s.options import (
    context_option,
    interval_option,
    job_options,
    up_within_option,
)
from tensorwire.errors import TensorwireError

if TYPE_CHECKING:
    from tensorwire.k8s.job import Job


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s submit --case 1 --name flights --image REGISTRY/IMAGE --script train.py --wait
  tensorwire k8s submit --dry-run --case 1 --name flights --image IMAGE --script train.py"""
)
@job_options
@context_option
@click.option("--dry-run", is_flag=True, help="Show what would change in the cluster, and stop.")
@click.option("--wait", is_flag=True, help="Follow the job to its end.")
@click.option("--clean-up", is_flag=True, help="Remove everything once the job has succeeded.")
@up_within_option
@interval_option
def submit(
    job: Job,
    templates: Path | None,
    namespace: str | None,
    context: str | None,
    dry_run: bool,
    wait: bool,
    clean_up: bool,
    up_within: float,
    interval: float,
) -> None:
    """Start a job, and with --wait follow it to its end.

    Done again with the same job it changes nothing, and follows the one that is there. The exit
    status is 0 only if the job has succeeded. Ctrl-C ends the following; the job goes on.
    """
    from tensorwire.k8s import render as manifests
    from tensorwire.k8s import submit as cluster
    from tensorwire.k8s import watch
    from tensorwire.k8s.connection import Connection
    from tensorwire.k8s.state import FAILED
    from tensorwire.report.k8s import StateLines

    with Connection(context, namespace) as connection:
        job = cluster.with_kept_token(connection, job)
        objects = manifests.parse(manifests.render(job, templates))
        changes = (cluster.preview if dry_run else cluster.submit)(connection, objects)
        for change in changes if dry_run else ():
            click.echo(change.difference, nl=False)
        counts = Counter(change.what for change in changes)
        done = ", ".join(f"{count} {what}" for what, count in counts.items())
        where = f"{job.name} in namespace {connection.namespace}"
        click.echo(f"{where}: {'would be ' if dry_run else ''}{done}", err=dry_run)
        if dry_run or not (wait or clean_up):
            return
        state = watch.wait(
            connection,
            job.name,
            up_within_s=up_within,
            interval_s=interval,
            tell=StateLines(job.name, click.echo),
        )
        if state.outcome == FAILED:
            raise TensorwireError(watch.epitaph(connection, job.name, state))
        if clean_up:
            removed = cluster.delete(connection, job.name, timeout_s=120)
            click.echo(f"removed {len(removed)} objects")
