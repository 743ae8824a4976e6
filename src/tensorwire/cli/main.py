"""The entry point ``tensorwire``: finds the command, and shows errors as one line."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

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
    "run": ("tensorwire.cli.run:run", "Run a training script unchanged, with the plug-in loaded."),
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

_log = logging.getLogger(__name__)
INTERRUPTED = 128 + signal.SIGINT


def _choose(ctx: click.Context, option: click.Parameter, is_given: bool) -> None:
    if not is_given or ctx.resilient_parsing:
        return
    root = ctx.find_root()
    chosen = root.ensure_object(set)
    chosen.add(option.name)
    if {"quiet", "verbose"} <= chosen:
        raise UsageError("--quiet and --verbose exclude each other")
    if option.name == "quiet":
        # Progress, notes and warnings go to standard error; `run_command` has kept it for errors.
        sys.stderr = root.with_resource(open(os.devnull, "w"))  # noqa: PTH123, SIM115
    if option.name == "verbose":
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"


def _of_all_commands(*, hidden: bool) -> list[click.Option]:
    helps = {
        "--quiet": "Show results and errors only, and no progress.",
        "--verbose": "Show the log of tensorwire and of TensorFlow, too.",
        "--debug": "Show the traceback of an error.",
    }
    common: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _choose}
    return [
        click.Option([name], help=help, hidden=hidden, **common) for name, help in helps.items()
    ]


class _Root(LazyGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # `main` of click would end with 1, and say nothing.
            watched = select.poll()
            watched.register(sys.stdout, 0)
            if not any(events & select.POLLERR for _, events in watched.poll(0)):
                raise TensorwireError(
                    f"a process that was written to has ended: {error}"
                ) from error
            # The reader has what it wanted (`tensorwire … | head`). No output is possible any more,
            # and the interpreter's own flush at exit must not complain either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None


@click.group(
    cls=_Root,
    lazy=COMMANDS,
    params=_of_all_commands(hidden=False),
    everywhere=_of_all_commands(hidden=True),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: tensorwire demo",
)
@click.version_option(__version__, prog_name="tensorwire")
def cli() -> None:
    """Parameter-server training at wire speed on a stock TensorFlow.

    --quiet, --verbose and --debug stand before or after the command.
    """
    if old := settings.replace_old_names(os.environ):
        _log.warning("tensorwire: %s", old)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; see `run_command`."""
    run_command(cli, "tensorwire", arguments)


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> None:
    """Runs a command line and ends the process with the command's status.

    0 done, 1 the work failed, 2 wrong usage, 130 interrupted. An error is one line on standard
    error, which begins with `name`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    stderr = sys.stderr
    chosen: set[str] = set()

    def fail(message: str, exit_code: int) -> NoReturn:
        sys.stderr = stderr
        if "debug" in chosen:
            traceback.print_exc()
        prefix = f"{name}: " if exit_code == INTERRUPTED else f"{name}: error: "
        click.echo(prefix + message, err=True)
        sys.exit(exit_code)

    try:
        status = command.main(args=arguments, prog_name=name, standalone_mode=False, obj=chosen)
        sys.exit(status if isinstance(status, int) else 0)
    except TensorwireError as error:
        fail(str(error), error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.message, err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        hint = f" (see `{where.command_path} --help`)" if where else ""
        fail(error.format_message().replace("\n", " ") + hint, error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        fail("interrupted", INTERRUPTED)
    finally:
        sys.stderr = stderr


def end_in_order() -> None:
    """Makes SIGTERM and SIGHUP act as Ctrl-C: the process first ends all that it started.

    Not for commands that run a user's script, which may handle these signals itself.
    """
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            # This is a fork, such as pyroute2 makes and ends. It does not own what its parent
            # started.
            os._exit(128 + number)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup makes SIGHUP ignored; keep that
            signal.signal(number, end)


if __name__ == "__main__":
    main()
