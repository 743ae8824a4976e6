"""``tensorwire build``: the plug-in ahead of time."""

from __future__ import annotations

import click

from tensorwire.cli.tensorflow import quiet_tensorflow


@click.command(
    epilog="Example, in a Dockerfile: ENV TENSORWIRE_CACHE=/opt/tensorwire and RUN tensorwire build"
)
@click.option("--force", is_flag=True, help="Build even where a finished build is there.")
def build(force: bool) -> None:
    """Compile the plug-in for the installed TensorFlow, and load it to see that it works.

    This happens by itself at the first use of grpc++; do it ahead of time for a container image,
    or where the machine that trains has no compiler. The result is in the folder that
    TENSORWIRE_CACHE names, or in your cache folder.
    """
    quiet_tensorflow()
    from tensorwire.plugin.build import ensure_built
    from tensorwire.plugin.loader import load

    if force:
        ensure_built(rebuild=True)
    click.echo(load())
