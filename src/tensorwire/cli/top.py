"""`tensorwire top` and `tensorwire nic`: what tasks and network interfaces do, live."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live

from tensorwire.cli.click_extensions import takes
from tensorwire.cli.options import Output
from tensorwire.errors import TensorwireError
from tensorwire.metrics.observed_job import NO_TASK, ObservedJob, addresses_of
from tensorwire.options import option
from tensorwire.report.top import screen, waiting_screen

if TYPE_CHECKING:
    from tensorwire.metrics.nic import NicRate


@dataclass(frozen=True)
class TopOptions:
    """What to watch, and how."""

    endpoints: str | None = option(
        None,
        "Tasks to watch: HOST:PORT or unix:PATH, with commas.  "
        "[default: those of this user on this host]",
        metavar="LIST",
    )
    interval: float = option(1.0, "Seconds between updates.", least=0.1)
    once: bool = option(
        False, "Look once, then exit; the default without a terminal, and with --output json."
    )


@click.command(
    epilog="""\b
Examples:
  tensorwire top
  tensorwire top --endpoints ps-0:9100,worker-0:9100
  tensorwire top --output json"""
)
@takes(TopOptions, "options")
@takes(Output, "output", "form")
def top(options: TopOptions, output: Output) -> None:
    """Show what each task of a running job does, live.

    Columns: CPU (100 % is one core), memory, bytes in and out, requests served, the share of time
    spent waiting for other tasks, the part of that time spent on the wire, and the load of the
    busiest communication thread. A task with much more load than the others of its job is marked,
    with the tensor that causes it.
    """
    job = ObservedJob(None if options.endpoints is None else addresses_of(options.endpoints))
    if not job.addresses():
        raise TensorwireError(NO_TASK, page="docs/metrics.md#tensorwire-top")
    console = Console(highlight=False)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the way to end it
        if options.once or output.is_json or not console.is_terminal:
            _show_once(console, job, options.interval, output)
        else:
            _show_live(console, job, options.interval)


def _show_once(console: Console, job: ObservedJob, interval: float, output: Output) -> None:
    job.look()
    time.sleep(interval)
    rates = job.look()
    if not rates.tasks:
        reasons = "; ".join(f"{where}: {why}" for where, why in sorted(rates.unreachable.items()))
        raise TensorwireError(f"no task answers ({reasons or 'they have ended'})")
    output.give(
        lambda: json.dumps(rates.to_json(), indent=2),
        lambda: console.print(screen(rates, interval, console.width)),
    )


def _show_live(console: Console, job: ObservedJob, interval: float) -> None:
    with Live(
        waiting_screen("looking …"), console=console, screen=True, auto_refresh=False
    ) as live:
        job.look()
        while True:
            time.sleep(interval)
            rates = job.look()
            if rates.tasks or rates.unreachable:
                live.update(screen(rates, interval, console.width), refresh=True)
            else:
                live.update(waiting_screen("no task is left; waiting for one"), refresh=True)


@dataclass(frozen=True)
class NicOptions:
    """How often, and for how long."""

    interval: float = option(1.0, "Seconds between two lines.", least=0.05)
    count: int | None = option(None, "Stop after this many lines.  [default: never]", least=1)


@click.command(
    epilog="""\b
Examples:
  tensorwire nic
  tensorwire nic --interval 5 eth0"""
)
@click.argument("interfaces", nargs=-1, metavar="[INTERFACE]...")
@takes(NicOptions, "options")
@takes(Output, "output", "form")
def nic(interfaces: tuple[str, ...], options: NicOptions, output: Output) -> None:
    """Show KB/s (of 10^3 bytes) in and out of each network interface, and the share of its speed.

    Shows all interfaces that are up, or those named. Ctrl-C stops it and prints the averages. JSON
    is a line for each interval, and one for the averages.
    """
    from tensorwire.metrics.nic import choose, rates, read, readings
    from tensorwire.report import top as lines

    def show(found: Sequence[NicRate], table: Sequence[str]) -> None:
        output.give(
            lambda: json.dumps([dataclasses.asdict(each) for each in found]),
            lambda: click.echo("\n".join(table)),
        )

    chosen = choose(interfaces)
    shown: list[str] = []
    begun = read()
    try:
        pairs = itertools.pairwise(readings(options.interval))
        for before, after in itertools.islice(pairs, options.count):
            found = rates(chosen, before, after)
            names = [rate.interface for rate in found]
            # At the start, and when an interface was added or removed.
            header = lines.header(found) if names != shown else []
            shown = names
            show(found, [*header, lines.line(found)])
    except KeyboardInterrupt:
        if not output.is_json:
            click.echo()
    average = rates(chosen, begun, read())
    show(average, [lines.line(average) + "   average"])
