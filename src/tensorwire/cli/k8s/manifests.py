"""The commands of `tensorwire k8s` that need no cluster: cases, render, templates, label."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.cli.k8s.options import cases_option, context_option, job_options, layout_option
from tensorwire.errors import TensorwireError, UsageError

if TYPE_CHECKING:
    from tensorwire.k8s.job import Job


@click.command(epilog="Example: tensorwire k8s cases --cases mine.yaml")
@cases_option
def cases(cases_file: Path | None) -> None:
    """List the two scenarios (layouts) and their cases: those of the published test, and yours.

    A file of cases: {"cases": [{"name": "small", "workers": 4, "ps": 2, "workers_per_node": 2}]}
    """
    from rich.console import Console

    from tensorwire.k8s.layout import PUBLISHED, read_cases
    from tensorwire.report.k8s import cases_table

    mine = read_cases(cases_file) if cases_file else ()
    Console().print(cases_table([*PUBLISHED, *mine]))


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s render --case 2 --layout isolated --name flights --image REGISTRY/IMAGE \\
      --script train.py | kubectl apply -f -
  tensorwire k8s render --workers 50 --ps 5 --workers-per-node 10 --name ctr --output manifests \\
      --image REGISTRY/IMAGE --script /app/train.py -- --ps_hosts={ps_hosts} \\
      --task_index={task_index}"""
)
@job_options
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one file per object into this folder, instead of one stream.",
)
def render(job: Job, templates: Path | None, output: Path | None, namespace: str | None) -> None:
    """Write a job's manifests, as one YAML stream or as one file per object.

    After -- come the script's own arguments. {task_index}, {task_type}, {ps_hosts}, {worker_hosts},
    {ps} and {workers} in them are replaced by their values. TF_CONFIG is set, too.
    """
    from tensorwire.k8s import render as manifests

    text = manifests.render(job, templates)
    parsed = manifests.parse(text)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, document in zip(
            manifests.file_names(parsed), manifests.documents(text), strict=True
        ):
            (output / name).write_text(document, encoding="utf-8")
    except OSError as error:
        raise TensorwireError(f"cannot write into {output}: {error.strerror}") from None
    click.echo(f"{len(parsed)} objects in {output}: kubectl apply -f {output}")


@click.command(epilog="Example: tensorwire k8s templates mine, then k8s render --templates mine …")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def templates(folder: Path) -> None:
    """Copy the Jinja2 templates of the manifests into FOLDER, to change them.

    Keep the files that you change and remove the others: --templates uses a file of your folder if
    it exists there, and the built-in template otherwise.
    """
    from tensorwire.k8s.render import copy_templates

    try:
        for path in copy_templates(folder):
            click.echo(path)
    except OSError as error:
        raise TensorwireError(f"cannot write into {folder}: {error.strerror}") from None


@click.command(
    epilog="""\b
Examples:
  tensorwire k8s label --case 2 --layout isolated --nodes node-{1..10}   # prints commands
  tensorwire k8s label --case 1 --nodes node-1 --apply"""
)
@click.option("--case", required=True, help="A published case (1 to 4), or one of --cases.")
@cases_option
@layout_option
@click.option("--nodes", "first_nodes", help="Nodes to label, separated by commas or blanks.")
@click.argument("more_nodes", nargs=-1, metavar="[NODE]...")
@click.option("--apply", is_flag=True, help="Label the nodes, instead of printing commands.")
@click.option("--remove", is_flag=True, help="Remove the labels.")
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

    The labels are those of the published test: SCENCE (1 co-located, 2 isolated), CASE, INDEX of
    the server, and TYPE (worker or ps) in the isolated layout.
    """
    from tensorwire.k8s.layout import PUBLISHED, command, find_case, plan, read_cases

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
    from tensorwire.k8s.layout import apply_labels

    with Connection(context) as connection:
        apply_labels(connection, wanted)
    click.echo(f"{'unlabelled' if remove else 'labelled'} {', '.join(wanted)}")
