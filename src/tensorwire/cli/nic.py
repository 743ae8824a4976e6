"""`tensorwire nic`: the traffic of the network interfaces, one line per interval."""

from __future__ import annotations

import itertools

import click

from tensorwire.cli.click_extensions import Number


@click.command(
    epilog="""\b
Examples:
  tensorwire nic
  tensorwire nic --interval 5 eth0"""
)
@click.argument("interfaces", nargs=-1, metavar="[INTERFACE]...")
@click.option(
    "--interval",
    type=Number(min=0.05),
    default=1.0,
    show_default=True,
    help="Seconds between two lines.",
)
@click.option(
    "--count", type=click.IntRange(min=1), help="Stop after this many lines.  [default: never]"
)
def nic(interfaces: tuple[str, ...], interval: float, count: int | None) -> None:
    """Show KB/s (of 10^3 bytes) in and out of each network interface, and the share of its speed.

    Shows all interfaces that are up, or those named. Ctrl-C stops it and prints the averages.
    """
    from tensorwire.metrics.nic import Watch, choose
    from tensorwire.report import top as lines

    watch = Watch(choose(interfaces))
    shown: list[str] = []
    try:
        for rates in itertools.islice(watch.intervals(interval), count):
            names = [rate.interface for rate in rates]
            if names != shown:  # at the start, and when an interface was added or removed
                click.echo("\n".join(lines.header(rates)))
                shown = names
            click.echo(lines.line(rates))
    except KeyboardInterrupt:
        click.echo()
    click.echo(lines.line(watch.averages()) + "   average")
