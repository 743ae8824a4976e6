"""`tensorwire k8s logs`."""

from __future__ import annotations

import click

from tensorwire.cli.k8s.options import context_option, name_argument, namespace_option


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s logs flights --tail 5
  tensorwire k8s logs flights --task worker:0 --follow"""
)
@name_argument
@namespace_option
@context_option
@click.option("--task", help="One, as worker:3, or all of a role, as worker.  [default: all]")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last lines of each.")
@click.option("--follow", "-f", is_flag=True, help="Go on as they are printed, until Ctrl-C.")
def logs(
    name: str,
    namespace: str | None,
    context: str | None,
    task: str | None,
    tail: int | None,
    follow: bool,
) -> None:
    """Show what the tasks of the job NAME print, each line behind its task's name."""
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
