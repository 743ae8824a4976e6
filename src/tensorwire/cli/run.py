"""The commands that load the plug-in: `tensorwire build` and `tensorwire run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tensorwire.cli.click_extensions import refuse_unused
from tensorwire.cli.tensorflow import check_script, quiet_tensorflow
from tensorwire.metrics import endpoint
from tensorwire.placement.plan import STRATEGIES
from tensorwire.plugin.rewrites import EXACT_REWRITES, WIRE_DTYPES
from tensorwire.plugin.tensorflow_install import cache_folder
from tensorwire.run import environment as run_environment


@click.command(
    epilog="Example, in a Dockerfile: ENV TENSORWIRE_CACHE=/opt/tensorwire and RUN tensorwire build"
)
@click.option(
    "--force",
    is_flag=True,
    help="Compile again even if a finished build exists. A plug-in in the package is still "
    "preferred, unless TENSORWIRE_PREBUILT=0.",
)
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="List the plug-ins in the package and in the cache; compile and load nothing.",
)
def build(force: bool, only_list: bool) -> None:
    """Find or compile the plug-in for the installed TensorFlow, and load it to see that it works.

    The wheel of tensorwire carries a plug-in for each TensorFlow of PyPI that it is tested with.
    For any other TensorFlow the plug-in is compiled: at the first use of grpc++, or ahead of time
    by this command, for a container image or a training machine without a compiler. The result is
    in the folder that TENSORWIRE_CACHE names, or in your cache folder.
    """
    quiet_tensorflow()
    from tensorwire.plugin.build import ensure_built
    from tensorwire.plugin.loader import load

    if only_list:
        _show_inventory()
        return
    if force:
        ensure_built(rebuild=True)
    click.echo(load())


def _show_inventory() -> None:
    from tensorwire.plugin.build import inventory

    found = inventory()
    tensorflow, carried = found.tensorflow, found.carried
    click.echo(f"TensorFlow {tensorflow.version} in {tensorflow.library_folder}")
    click.echo(f"compile flags: {' '.join(tensorflow.compile_flags)}")
    if carried.plugins:
        fingerprint = tensorflow.fingerprint(carried.headers)
        click.echo(f"fingerprint: {fingerprint}")
        click.echo(f"plug-ins in this package, compiled by {carried.compiler}:")
        for own, plugin in carried.plugins.items():
            fits = "   <- fits" if own == fingerprint else ""
            click.echo(f"  {own}  {', '.join(plugin.tensorflows)}{fits}")
    else:
        click.echo("this package carries no plug-ins")
    click.echo(f"in the cache {cache_folder()}:")
    for library in found.cached:
        click.echo(f"  {library.parent.name}   <- fits")
    if found.unfit:
        click.echo(
            f"  {len(found.unfit)} for another TensorFlow or of another version of tensorwire"
        )
    elif not found.cached:
        click.echo("  nothing")
    if found.fitting is None and not found.cached:
        click.echo("none fits: the first use compiles one")


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: tensorwire run --protocol grpc++ train.py --job_name worker --task_index 0",
)
@click.option(
    "--protocol",
    type=click.Choice(["grpc++", "grpc"]),
    help="Overrides the script's protocol.  [default: the script's own]",
)
@click.option(
    "--tensor-fuse",
    is_flag=True,
    help="Send the small tensors between two tasks as one message.",
)
@click.option(
    "--exact-rewrites",
    is_flag=True,
    help="As --tensor-fuse, and send ids that repeat, their rows and their gradients once.",
)
@click.option(
    "--wire-dtype",
    type=click.Choice(WIRE_DTYPES),
    help="Send the floats of training steps between tasks in 16 bits. Changes results.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve each task's metrics on this port (0: any free port), for Prometheus (/metrics) and "
    "`tensorwire top`.",
)
@click.option(
    "--metrics-host",
    metavar="ADDRESS",
    help="Address on which --metrics-port listens.  [default: 127.0.0.1]",
)
@click.option(
    "--placement",
    type=click.Choice(tuple(STRATEGIES)),
    help="Placement of variables, unless the script chooses one: one ps after the other, the ps "
    "with the fewest bytes, or planned and split after a dry run.  [default: round_robin]",
)
@click.option(
    "--traffic",
    "traffic_paths",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Traffic of an earlier run, for --placement balanced: see `tensorwire place`.",
)
@click.option(
    "--keep-whole",
    "keep_whole",
    metavar="NAME",
    multiple=True,
    help="Variable name or pattern that --placement balanced does not split.",
)
@click.option(
    "--device-filters",
    type=click.Choice(["auto"]),
    help="auto: the session of a worker sees the ps and its own task, unless the script has "
    "device_filters; so it does not wait for workers that have ended. Not for a step of several "
    "workers.",
)
@click.option(
    "-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m."
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    protocol: str | None,
    tensor_fuse: bool,
    exact_rewrites: bool,
    wire_dtype: str | None,
    metrics_port: int | None,
    metrics_host: str | None,
    placement: str | None,
    traffic_paths: tuple[Path, ...],
    keep_whole: tuple[str, ...],
    device_filters: str | None,
    as_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a training SCRIPT unchanged, with the plug-in loaded.

    The script runs as `python SCRIPT ARGUMENTS` would run it. The plug-in is also loaded in the
    Python processes that it starts. The exit status is the script's.
    """
    if not as_module:
        check_script(Path(script))
    target = ["-m", script] if as_module else [script]
    if placement != "balanced":
        refuse_unused("is for --placement balanced", "traffic_paths", "keep_whole")
    if metrics_port is None and not os.environ.get(endpoint.PORT_VARIABLE):
        refuse_unused("is for --metrics-port: give that, too", "metrics_host")
    run_environment.check_security()
    environment = run_environment.environment(
        protocol,
        tensor_fuse,
        debug=bool(ctx.obj and ctx.obj["debug"]),
        placement=_placement(
            placement,
            [*target, *arguments],
            traffic_paths,
            keep_whole,
            exact_rewrites=exact_rewrites or EXACT_REWRITES.is_asked_for(None),
        ),
        exact_rewrites=exact_rewrites,
        wire_dtype=wire_dtype,
        device_filters=device_filters is not None,
    )
    if metrics_port is not None:
        environment[endpoint.PORT_VARIABLE] = str(metrics_port)
    if metrics_host is not None:
        environment[endpoint.HOST_VARIABLE] = metrics_host
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *target, *arguments], environment)


def _placement(
    strategy: str | None,
    command: Sequence[str],
    traffic_paths: Sequence[Path],
    keep_whole: Sequence[str],
    *,
    exact_rewrites: bool,
) -> str | None:
    """The value that tells the script's processes which placement to use."""
    if strategy in (None, "round_robin"):
        return None
    from tensorwire.placement import default
    from tensorwire.placement.plan import Model, whole
    from tensorwire.placement.traffic import Traffic
    from tensorwire.run import dry_run

    if strategy == "greedy":
        return default.encode((), None)
    model: Model = dry_run.model_of_script(command, os.environ)
    if not model.variables:  # a ps makes no variables, so there is nothing to place
        return None
    variables = whole(model.variables, keep_whole)
    click.echo(f"tensorwire: planning the placement of {len(variables)} variables", err=True)
    traffic = Traffic.known(traffic_paths, model.crossings, exact_rewrites=exact_rewrites)
    return default.encode(variables, traffic)
