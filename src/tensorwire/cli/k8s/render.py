"""`tensorwire k8s render`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.cli.k8s.options import job_options
from tensorwire.errors import TensorwireError

if TYPE_CHECKING:
    from tensorwire.k8s.job import Job


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
    help="Write a file an object into this folder, instead of one stream.",
)
def render(job: Job, templates: Path | None, output: Path | None, namespace: str | None) -> None:
    """Write a job's manifests, as one YAML stream or a file an object.

    After -- come the script's own arguments. In these {task_index}, {task_type}, {ps_hosts},
    {worker_hosts}, {ps} and {workers} are filled in; TF_CONFIG is set as well.
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
