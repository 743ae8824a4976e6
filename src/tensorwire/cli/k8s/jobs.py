"""The commands of `tensorwire k8s` for one job on a cluster: submit, status, logs, delete."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.cli.click_extensions import Number
from tensorwire.cli.k8s.options import (
    context_option,
    interval_option,
    job_options,
    name_argument,
    namespace_option,
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

    Submitting the same job again changes nothing and follows the existing job. The exit status is 0
    only if the job has succeeded. Ctrl-C stops following; the job goes on.
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
            raise TensorwireError(watch.failure(connection, job.name, state))
        if clean_up:
            removed = cluster.delete(connection, job.name, timeout_s=120)
            click.echo(f"removed {len(removed)} objects")


@click.command(epilog="Example: tensorwire k8s status flights")
@name_argument
@namespace_option
@context_option
@click.option("--watch", "follow", is_flag=True, help="Follow the job to its end.")
@interval_option
def status(
    name: str, namespace: str | None, context: str | None, follow: bool, interval: float
) -> None:
    """Show the tasks of the job NAME, their problems, and how fast the job trains.

    The exit status is 1 if the job has failed.
    """
    import math
    import time

    from rich.console import Console

    from tensorwire.k8s import watch
    from tensorwire.k8s.connection import Connection
    from tensorwire.k8s.state import FAILED, Progress
    from tensorwire.report.k8s import StateLines, state_line, tasks_table

    with Connection(context, namespace) as connection:
        if follow:
            tell = StateLines(name, click.echo)
            state = watch.wait(
                connection, name, up_within_s=math.inf, interval_s=interval, tell=tell
            )
        else:
            state = watch.observe(connection, name)
            progress = None
            first = watch.read_metrics(connection, state) if state.outcome is None else None
            if first is not None:
                time.sleep(min(interval, 2.0))
                second = watch.read_metrics(connection, state)
                progress = Progress.between(first, second) if second else None
            Console().print(tasks_table(state))
            click.echo(state_line(name, state, progress))
            for trouble in state.all_troubles:
                click.echo(f"  {trouble}")
        if state.outcome == FAILED:
            raise TensorwireError(watch.failure(connection, name, state))


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s logs flights --tail 5
  tensorwire k8s logs flights --task worker:0 --follow"""
)
@name_argument
@namespace_option
@context_option
@click.option(
    "--task", help="One task, such as worker:3, or all of a role, such as worker.  [default: all]"
)
@click.option(
    "--tail", type=click.IntRange(min=0), help="Show only this many last lines of each task."
)
@click.option("--follow", "-f", is_flag=True, help="Keep showing new lines, until Ctrl-C.")
def logs(
    name: str,
    namespace: str | None,
    context: str | None,
    task: str | None,
    tail: int | None,
    follow: bool,
) -> None:
    """Show what the tasks of the job NAME print. Each line begins with the name of its task."""
    from tensorwire.k8s import watch
    from tensorwire.k8s.connection import Connection

    with Connection(context, namespace) as connection:
        tasks = watch.find_tasks(watch.observe(connection, name), task)
        if len(tasks) == 1:
            for line in watch.log(connection, tasks[0], tail=tail, follow=follow):
                click.echo(f"{tasks[0].name}: {line}")
            return
        for who, line in watch.logs(connection, tasks, tail=tail, follow=follow):
            click.echo(f"{who.name}: {line}")


@click.command(epilog="Example: tensorwire k8s delete flights")
@name_argument
@namespace_option
@context_option
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=Number(min=0),
    default=120.0,
    show_default=True,
    help="Seconds to wait for the pods to be deleted.",
)
def delete(name: str, namespace: str | None, context: str | None, timeout: float) -> None:
    """Remove all objects of the job NAME, and wait until its pods are gone.

    Removes all objects with the job's label. A job that does not exist is not an error.
    """
    from tensorwire.k8s import submit as cluster
    from tensorwire.k8s.connection import Connection

    with Connection(context, namespace) as connection:
        removed = cluster.delete(connection, name, timeout)
        for each in removed:
            click.echo(f"removed {each}")
        if not removed:
            click.echo(f"there is nothing of {name} in namespace {connection.namespace}")
