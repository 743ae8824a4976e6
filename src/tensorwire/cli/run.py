"""The commands that load the plug-in: `tensorwire build` and `tensorwire run`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire import engine
from tensorwire.cli.click_extensions import refuse_unused, takes
from tensorwire.cli.options import Output
from tensorwire.cli.tensorflow import check_script, quiet_tensorflow
from tensorwire.cluster import GRPC, PROTOCOLS
from tensorwire.metrics import endpoint
from tensorwire.options import option
from tensorwire.placement.plan import STRATEGIES
from tensorwire.plugin import rewrites
from tensorwire.plugin.cache import cache_folder
from tensorwire.run import environment as run_environment
from tensorwire.settings import METRICS, address_text

if TYPE_CHECKING:
    from tensorwire.plugin.build import Inventory


@dataclass(frozen=True)
class BuildOptions:
    """What `tensorwire build` does besides."""

    force: bool = option(
        False,
        "Compile again even if a finished build exists. A plug-in in the package is still "
        "preferred, unless TENSORWIRE_PREBUILT=0.",
    )
    only_list: bool = option(
        False,
        "List the plug-ins in the package and in the cache; compile and load nothing.",
        name="--list",
    )


@click.command(
    epilog="Example, in a Dockerfile: ENV TENSORWIRE_CACHE=/opt/tensorwire and RUN tensorwire build"
)
@takes(BuildOptions, "options")
@takes(Output, "output", "form")
def build(options: BuildOptions, output: Output) -> None:
    """Find or compile the plug-in for the installed TensorFlow, and load it to see that it works.

    The wheel of tensorwire carries a plug-in for each TensorFlow of PyPI that it is tested with.
    For any other TensorFlow the plug-in is compiled: at the first use of grpc++, or ahead of time
    by this command, for a container image or a training machine without a compiler. The result is
    in the folder that TENSORWIRE_CACHE names, or in your cache folder.
    """
    if options.only_list:
        refuse_unused("compiles, and --list compiles nothing: leave one out", "force")
    else:
        refuse_unused("is for --list", "form")
    quiet_tensorflow()
    from tensorwire.plugin.build import ensure_built, inventory
    from tensorwire.plugin.loader import load

    if options.only_list:
        found = inventory()
        output.give(lambda: json.dumps(found.document(), indent=1), lambda: _show(found))
        return
    if options.force:
        ensure_built(rebuild=True)
    click.echo(load())


def _show(found: Inventory) -> None:
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


@dataclass(frozen=True)
class RunOptions:
    """How a script runs."""

    protocol: str | None = option(
        None, "Overrides the script's protocol.  [default: the script's own]", choices=PROTOCOLS
    )
    tensor_fuse: bool = option(False, "Send the small tensors between two tasks as one message.")
    exact_rewrites: bool = option(
        False, "As --tensor-fuse, and send ids that repeat, their rows and their gradients once."
    )
    wire_dtype: str | None = option(
        None,
        "Send the floats of training steps between tasks in 16 bits. Changes results.",
        choices=rewrites.WIRE_DTYPES,
    )
    metrics_port: int | None = option(
        None,
        "Serve the metrics of each task on grpc++ on this port (0: any free port), for Prometheus "
        "(/metrics) and `tensorwire top`.",
        least=0,
        most=65535,
    )
    metrics_host: str | None = option(
        None, "Address on which --metrics-port listens.  [default: 127.0.0.1]", metavar="ADDRESS"
    )
    placement: str | None = option(
        None,
        "Placement of variables, unless the script chooses one: one ps after the other, the ps "
        "with the fewest bytes, or planned and split after a dry run.  [default: round_robin]",
        choices=tuple(STRATEGIES),
    )
    traffic_paths: Sequence[Path] = option(
        (),
        "Traffic of an earlier run, for --placement balanced: see `tensorwire place`.",
        name="--traffic",
        path="any",
        repeated=True,
    )
    keep_whole: Sequence[str] = option(
        (),
        "Variable name or pattern that --placement balanced does not split.",
        metavar="NAME",
        repeated=True,
    )
    device_filters: str | None = option(
        None,
        "auto: the session of a worker sees the ps and its own task, unless the script has "
        "device_filters; so it does not wait for workers that have ended. Not for a step of "
        "several workers.",
        choices=("auto",),
    )
    as_module: bool = option(False, "SCRIPT is the name of a module, as in python -m.", name="-m")


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: tensorwire run --protocol grpc++ train.py --job_name worker --task_index 0",
)
@takes(RunOptions, "options")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, options: RunOptions, script: str, arguments: tuple[str, ...]) -> None:
    """Run a training SCRIPT unchanged, with the plug-in loaded.

    The script runs as `python SCRIPT ARGUMENTS` would run it. The plug-in is also loaded in the
    Python processes that it starts. The exit status is the script's.
    """
    if not options.as_module:
        check_script(Path(script))
    target = ["-m", script] if options.as_module else [script]
    if options.placement != "balanced":
        refuse_unused("is for --placement balanced", "traffic_paths", "keep_whole")
    if options.metrics_port is None:
        refuse_unused("is for --metrics-port: give that, too", "metrics_host")
    engine.check_security()
    named = (options.tensor_fuse and "tensor_fuse", options.exact_rewrites and rewrites.EXACT)
    environment = run_environment.environment(
        options.protocol,
        debug="debug" in (ctx.obj or ()),
        placement=_encoded_placement(options, [*target, *arguments]),
        words=[word for word in (*named, options.wire_dtype) if word],
        device_filters=options.device_filters is not None,
    )
    if options.metrics_port is not None and options.protocol == GRPC:
        # No error: going back to gRPC takes one word, and the rest of a command line stays.
        click.echo("tensorwire: no metrics are served: only tasks on grpc++ have them", err=True)
    elif options.metrics_port is not None:
        host = options.metrics_host or endpoint.LOOPBACK
        environment[METRICS] = address_text(host, options.metrics_port)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *target, *arguments], environment)


def _encoded_placement(options: RunOptions, command: Sequence[str]) -> str | None:
    """The value that tells the script's processes which placement to use."""
    if options.placement in (None, "round_robin"):
        return None
    from tensorwire.placement import default
    from tensorwire.placement.plan import Model, whole
    from tensorwire.placement.traffic import Traffic
    from tensorwire.run import dry_run

    if options.placement == "greedy":
        return default.encode((), None)
    model: Model = dry_run.model_of_script(command, os.environ)
    if not model.variables:  # a ps makes no variables, so there is nothing to place
        return None
    variables = whole(model.variables, options.keep_whole)
    click.echo(f"tensorwire: planning the placement of {len(variables)} variables", err=True)
    exact = options.exact_rewrites or rewrites.EXACT in rewrites.of_process(os.environ)
    traffic = Traffic.known(options.traffic_paths, model.crossings, exact_rewrites=exact)
    return default.encode(variables, traffic)
