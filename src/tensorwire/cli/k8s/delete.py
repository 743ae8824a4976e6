"""`tensorwire k8s delete`."""

from __future__ import annotations

import click

from tensorwire.cli.k8s.options import context_option, name_argument, namespace_option
from tensorwire.cli.numbers import Number


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
    help="Until the pods must be gone.",
)
def delete(name: str, namespace: str | None, context: str | None, timeout: float) -> None:
    """Remove all objects of the job NAME, and wait until its pods are gone.

    It removes what carries the job's label, however it came there; a job that is not there is no
    error.
    """
    from tensorwire.k8s import submit as cluster
    from tensorwire.k8s.connection import Connection

    with Connection(context, namespace) as connection:
        removed = cluster.delete(connection, name, timeout)
        for each in removed:
            click.echo(f"removed {each}")
        if not removed:
            click.echo(f"there is nothing of {name} in namespace {connection.namespace}")
