"""`tensorwire k8s`: jobs on Kubernetes, from manifests to the end of the job."""

from __future__ import annotations

import click

from tensorwire.cli.click_extensions import LazyGroup
from tensorwire.errors import TensorwireError

COMMANDS = {
    "cases": ("tensorwire.cli.k8s.commands:cases", "List the scenarios and their cases."),
    "render": ("tensorwire.cli.k8s.commands:render", "Write a job's manifests."),
    "templates": ("tensorwire.cli.k8s.commands:templates", "Copy the templates, to change them."),
    "label": ("tensorwire.cli.k8s.commands:label", "Print or apply the labels of a case's nodes."),
    "submit": ("tensorwire.cli.k8s.commands:submit", "Start a job, and follow it to its end."),
    "status": ("tensorwire.cli.k8s.commands:status", "Show how a job is doing."),
    "scale": ("tensorwire.cli.k8s.commands:scale", "Change the number of a job's workers."),
    "logs": ("tensorwire.cli.k8s.commands:logs", "Show what a job's tasks print."),
    "compare": ("tensorwire.bench.layouts.command:compare", "Compare both layouts of a case."),
    "delete": ("tensorwire.cli.k8s.commands:delete", "Remove a job."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    epilog="Example: tensorwire k8s submit --case 1 --name flights --image REGISTRY/IMAGE "
    "--script train.py --follow",
)
def k8s() -> None:
    """Run ps/worker jobs on Kubernetes, with workers and ps on the same nodes or on different ones.

    docs/kubernetes.md explains all steps, from the image to the end of a job.
    """
    try:
        import jinja2  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as error:
        raise TensorwireError(
            f"manifests need a library that is missing ({error}): pip install 'tensorwire[k8s]'"
        ) from error
