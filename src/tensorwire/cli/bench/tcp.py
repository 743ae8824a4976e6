"""`tensorwire bench tcp`."""

from __future__ import annotations

import click

from tensorwire.bench.raw_processes import SERVER
from tensorwire.cli.hosts import TwoEnds, two_ends_options
from tensorwire.cli.measuring import measure_and_show
from tensorwire.cli.options import Comparison, comparison_options
from tensorwire.errors import UsageError


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{parameter.opts[0]} {text}: give numbers, as in 1,4") from None


@click.command(
    epilog="""\b
Examples:
  tensorwire bench tcp
  tensorwire bench tcp --streams 1,2,8 --message-size 1048576 --json tcp.json
  tensorwire bench tcp --job server
  tensorwire bench tcp --job client --target host1:12222"""
)
@click.option(
    "--streams",
    metavar="LIST",
    default="1,4",
    show_default=True,
    callback=_numbers,
    help="Numbers of parallel streams; each is measured.",
)
@click.option(
    "--message-size",
    type=int,
    default=128 << 10,
    show_default=True,
    help="Bytes of the buffer that a stream sends repeatedly.",
)
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Seconds per measurement and round.",
)
@comparison_options(default_rounds=5, tensor_fuse=False, transport=False, protocols=False)
@two_ends_options
def tcp(
    *,
    streams: tuple[int, ...],
    message_size: int,
    seconds: int,
    comparison: Comparison,
    ends: TwoEnds,
) -> None:
    """Measure raw TCP, the upper limit: one and several streams, and iperf3 where installed.

    MB are 10^6 bytes.
    """
    from tensorwire.bench.tcp import TcpPlan, measure_remote, run, serve
    from tensorwire.report.progress import ProgressDisplay

    plan = TcpPlan(streams, message_size, seconds, comparison.rounds)
    if ends.job == SERVER:
        with ProgressDisplay("bench tcp", plan.blocks) as progress:
            serve(ends.port, ends.peer_timeout_s, progress)
        return
    measure_and_show(
        "bench tcp",
        plan,
        lambda plan, watcher, host_pool: (
            measure_remote(plan, ends.target, watcher)
            if ends.target
            else run(plan, watcher, host_pool)
        ),
        comparison,
    )
