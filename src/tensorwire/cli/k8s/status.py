"""`tensorwire k8s status`."""

from __future__ import annotations

import click

from tensorwire.cli.k8s.options import (
    context_option,
    interval_option,
    name_argument,
    namespace_option,
)
from tensorwire.errors import TensorwireError


@click.command(epilog="Example: tensorwire k8s status flights")
@name_argument
@namespace_option
@context_option
@click.option("--watch", "follow", is_flag=True, help="Follow it to its end.")
@interval_option
def status(
    name: str, namespace: str | None, context: str | None, follow: bool, interval: float
) -> None:
    """Show the tasks of the job NAME, what holds them up, and how fast it trains.

    The exit status is 1 if the job has failed.
    """
    import math
    import time

    from rich.console import Console

    from tensorwire.k8s import watch
    from tensorwire.k8s.connection import Connection
    from tensorwire.k8s.progress import Progress
    from tensorwire.k8s.state import FAILED
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
            first = watch.read_figures(connection, state) if state.outcome is None else None
            if first is not None:
                time.sleep(min(interval, 2.0))
                second = watch.read_figures(connection, state)
                progress = Progress.between(first, second) if second else None
            Console().print(tasks_table(state))
            click.echo(state_line(name, state, progress))
            for trouble in state.all_troubles:
                click.echo(f"  {trouble}")
        if state.outcome == FAILED:
            raise TensorwireError(watch.epitaph(connection, name, state))
