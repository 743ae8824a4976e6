"""`tensorwire k8s label`."""

from __future__ import annotations

from pathlib import Path

import click

from tensorwire.cli.k8s.options import cases_option, context_option, layout_option
from tensorwire.errors import UsageError


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s label --case 2 --layout isolated --nodes node-{1..10}   # prints commands
  tensorwire k8s label --case 1 --nodes node-1 --apply"""
)
@click.option("--case", required=True, help="A published case (1 to 4), or one of --cases.")
@cases_option
@layout_option
@click.option("--nodes", "first_nodes", help="The nodes to take, separated by commas or blanks.")
@click.argument("more_nodes", nargs=-1, metavar="[NODE]...")
@click.option("--apply", is_flag=True, help="Label them now, instead of printing how.")
@click.option("--remove", is_flag=True, help="Take the labels away again.")
@context_option
def label(
    case: str,
    cases_file: Path | None,
    layout: str,
    first_nodes: str | None,
    more_nodes: tuple[str, ...],
    apply: bool,
    remove: bool,
    context: str | None,
) -> None:
    """Print the labels that --scheduling labels looks for, or label the nodes.

    The labels are the published test's: SCENCE (1 co-located, 2 isolated), CASE, INDEX of the
    server, and TYPE (worker or ps) where they are isolated.
    """
    from tensorwire.k8s.cases import PUBLISHED, find_case, read_cases
    from tensorwire.k8s.labels import command, plan

    found = find_case(case, (*PUBLISHED, *(read_cases(cases_file) if cases_file else ())))
    nodes = [*(first_nodes or "").replace(",", " ").split(), *more_nodes]
    if not nodes:
        raise UsageError("name the nodes: --nodes node-1,node-2 (`kubectl get nodes` lists them)")
    wanted = plan(found, layout, nodes, remove=remove)
    if not apply:
        for node, labels in wanted.items():
            click.echo(command(node, labels))
        return
    from tensorwire.k8s.connection import Connection
    from tensorwire.k8s.labels import apply_labels

    with Connection(context) as connection:
        apply_labels(connection, wanted)
    click.echo(f"{'unlabelled' if remove else 'labelled'} {', '.join(wanted)}")
