"""The entry point ``tensorwire``: finds the command, and shows errors as one line."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from tensorwire import __version__, settings
from tensorwire.cli.click_extensions import LazyGroup
from tensorwire.errors import TensorwireError, UsageError

COMMANDS = {
    "demo": (
        "tensorwire.bench.experiments.train:demo",
        "Train Wide & Deep on real flights, on grpc and on grpc++.",
    ),
    "check": ("tensorwire.cli.doctor:check", "Say what works on this machine and in a cluster."),
    "run": ("tensorwire.cli.run:run", "Run a training script unchanged, on grpc++."),
    "build": ("tensorwire.cli.run:build", "Compile the plug-in for the installed TensorFlow."),
    "bench": ("tensorwire.bench.commands:bench", "Measure the layers below a training step."),
    "report": (
        "tensorwire.bench.experiments.runs:command",
        "Show records again, several side by side.",
    ),
    "top": ("tensorwire.cli.top:top", "Show what the tasks of a running job do, live."),
    "place": ("tensorwire.cli.place:place", "Show which variable lands on which ps."),
    "plan": ("tensorwire.cli.plan:plan", "Predict what a cluster would do."),
    "k8s": ("tensorwire.cli.k8s:k8s", "Run ps/worker jobs on Kubernetes."),
    "doctor": ("tensorwire.cli.doctor:doctor", "Say why a job does not scale."),
    "nic": ("tensorwire.cli.top:nic", "Show what the network interfaces move."),
}

_OF_ALL_COMMANDS = ("--quiet", "--verbose", "--debug")
_log = logging.getLogger(__name__)
INTERRUPTED = 128 + signal.SIGINT


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: tensorwire demo",
)
@click.version_option(__version__, prog_name="tensorwire")
@click.option("--quiet", is_flag=True, help="Show results and errors only, and no progress.")
@click.option("--verbose", is_flag=True, help="Show the log of tensorwire and of TensorFlow, too.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, quiet: bool, verbose: bool, debug: bool) -> None:
    """Parameter-server training at wire speed on a stock TensorFlow.

    Options of all commands stand before the command: tensorwire --quiet bench steps.
    """
    ctx.obj = {"debug": debug}
    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other")
    if quiet:
        # Progress, notes and warnings go to standard error; `run_command` has kept it for errors.
        sys.stderr = ctx.with_resource(open(os.devnull, "w"))  # noqa: PTH123, SIM115
    if old := settings.replace_old_names(os.environ):
        _log.warning("tensorwire: %s", old)
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; see `run_command`."""
    run_command(cli, "tensorwire", arguments)


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> None:
    """Runs a command line and ends the process with the command's status.

    0 done, 1 the work failed, 2 wrong usage, 130 interrupted. An error is one line on standard
    error, which begins with `name`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Read from the arguments, not from the parsed options, because the parsing itself may fail.
    debug = "--debug" in arguments[: _command_position(arguments)]
    stderr = sys.stderr

    def fail(message: str, exit_code: int) -> NoReturn:
        sys.stderr = stderr
        _fail(name, message, exit_code, debug)

    try:
        status = command.main(args=arguments, prog_name=name, standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except TensorwireError as error:
        fail(str(error), error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.message, err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        fail(error.format_message().replace("\n", " ") + _hint(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader has ended (`tensorwire … | head`). No output is possible any more, and the
        # interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    finally:
        sys.stderr = stderr


def _hint(error: click.ClickException) -> str:
    """What helps with a wrong command line."""
    where = getattr(error, "ctx", None)
    if where is None:
        return ""
    option = getattr(error, "option_name", None)
    if option in _OF_ALL_COMMANDS and where.parent is not None:
        root, _, command = where.command_path.partition(" ")
        return f" It stands before the command: {root} {option} {command}"
    return f" (see `{where.command_path} --help`)"


def _command_position(arguments: Sequence[str]) -> int:
    """The index of the command's name; all arguments after it belong to the command."""
    return next((i for i, a in enumerate(arguments) if not a.startswith("-")), len(arguments))


def _fail(name: str, message: str, exit_code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    prefix = f"{name}: " if exit_code == INTERRUPTED else f"{name}: error: "
    click.echo(prefix + message, err=True)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
