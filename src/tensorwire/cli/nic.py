"""`tensorwire nic`: the traffic of the network interfaces, one line per interval."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import click

from tensorwire.cli.click_extensions import takes
from tensorwire.options import option


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
def nic(interfaces: tuple[str, ...], options: NicOptions) -> None:
    """Show KB/s (of 10^3 bytes) in and out of each network interface, and the share of its speed.

    Shows all interfaces that are up, or those named. Ctrl-C stops it and prints the averages.
    """
    from tensorwire.metrics.nic import choose, rates, read, readings
    from tensorwire.report import top as lines

    chosen = choose(interfaces)
    shown: list[str] = []
    begun = read()
    try:
        pairs = itertools.pairwise(readings(options.interval))
        for before, after in itertools.islice(pairs, options.count):
            found = rates(chosen, before, after)
            names = [rate.interface for rate in found]
            if names != shown:  # at the start, and when an interface was added or removed
                click.echo("\n".join(lines.header(found)))
                shown = names
            click.echo(lines.line(found))
    except KeyboardInterrupt:
        click.echo()
    click.echo(lines.line(rates(chosen, begun, read())) + "   average")
