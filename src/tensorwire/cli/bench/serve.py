"""`tensorwire bench serve`."""

from __future__ import annotations

import click

from tensorwire.bench.serve_task import PAYLOADS
from tensorwire.cli.hosts import between_hosts
from tensorwire.cli.measuring import measure_and_show
from tensorwire.cli.options import Comparison, comparison_options


@click.command(
    epilog="""\b
Examples:
  tensorwire bench serve
  tensorwire bench serve --clients 256 --message-size 65536 --payload skewed --json serve.json"""
)
@click.option(
    "--clients",
    type=int,
    default=64,
    show_default=True,
    help="Number of clients, each with its own connection to the ps.",
)
@click.option(
    "--busy",
    type=click.IntRange(min=1),
    help="Number of clients that send requests; the others only stay connected.  [default: all]",
)
@click.option(
    "--message-size",
    type=int,
    default=4096,
    show_default=True,
    help="Mean size of a tensor in bytes.",
)
@click.option(
    "--payload",
    type=click.Choice(PAYLOADS),
    default="uniform",
    show_default=True,
    help="uniform: all tensors have this size; random: from 1 byte to twice the size, each size "
    "equally likely; skewed: of ten tensors, six have 0.1 times the size, three have the size, one "
    "has 6.4 times the size.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Requests that a client keeps in flight.",
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    help="Measured requests of each protocol.  [default: 200000; fewer where tensors are large]",
)
@comparison_options(default_rounds=10, tensor_fuse=False)
@between_hosts("bench serve")
def serve(
    *,
    clients: int,
    busy: int | None,
    message_size: int,
    payload: str,
    in_flight: int,
    requests: int | None,
    comparison: Comparison,
) -> None:
    """Ask one ps for tensors from many clients: requests a second, and their latency.

    Payloads are named after those of TF-gRPC-Bench; all three have the same mean size.
    """
    from tensorwire.bench.serve import ServePlan, default_requests, run

    plan = ServePlan(
        clients=clients,
        busy=busy,
        message_size=message_size,
        payload=payload,
        in_flight=in_flight,
        requests=requests
        or default_requests(message_size, (busy or clients) * in_flight * comparison.rounds),
        rounds=comparison.rounds,
        protocols=comparison.protocols,
        setting=comparison.setting,
    )
    measure_and_show("bench serve", plan, run, comparison)
