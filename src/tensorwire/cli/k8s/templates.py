"""`tensorwire k8s templates`."""

from __future__ import annotations

from pathlib import Path

import click

from tensorwire.errors import TensorwireError


@click.command(epilog="Example: tensorwire k8s templates mine, then k8s render --templates mine …")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def templates(folder: Path) -> None:
    """Copy the Jinja2 templates of the manifests into FOLDER, to change them.

    Keep what you change and remove the rest: --templates takes a file from your folder where it is
    there, and ours otherwise.
    """
    from tensorwire.k8s.render import copy_templates

    try:
        for path in copy_templates(folder):
            click.echo(path)
    except OSError as error:
        raise TensorwireError(f"cannot write into {folder}: {error.strerror}") from None
