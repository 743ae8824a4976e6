"""`tensorwire bench rpc`."""

from __future__ import annotations

import click

from tensorwire.bench.raw_processes import SERVER
from tensorwire.cli.hosts import TwoEnds, two_ends_options
from tensorwire.cli.measuring import measure_and_show
from tensorwire.cli.options import Comparison, comparison_options
from tensorwire.errors import UsageError


@click.command(
    epilog="""\b
Examples:
  tensorwire bench rpc --message-size 64 --concurrency 64
  tensorwire bench rpc --message-size 104857600 --concurrency 4 --channels 1
  tensorwire bench rpc --job server --server-threads 1 --message-size 10
  tensorwire bench rpc --job client --target host1:12222 --total-message 1000 \\
      --message-size 104857600 --concurrency 4 --channels 1"""
)
@click.option(
    "--message-size",
    type=int,
    help="Bytes of a request; with --job server, of a response.  [default: 64; 10 with --job "
    "server]",
)
@click.option("--response-size", type=int, help="Bytes of a response.  [default: 10]")
@click.option(
    "--total-message",
    type=click.IntRange(min=1),
    help="Measured requests of each protocol.  [default: what takes 0.3 s a round]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="Requests in flight.  [default: 64; 4 from 1 MB on]",
)
@click.option(
    "--channels",
    type=click.IntRange(min=1),
    help="Connections of the client; requests are spread evenly over them.  [default: 1; from "
    "1 MB on 4]",
)
@click.option(
    "--server-threads",
    type=click.IntRange(min=1),
    help="Completion queues of gRPC, reactors of grpc++; one thread each.  "
    "[default: one per channel]",
)
@comparison_options(default_rounds=10, tensor_fuse=False, transport=False)
@two_ends_options
def rpc(
    *,
    message_size: int | None,
    response_size: int | None,
    total_message: int | None,
    concurrency: int | None,
    channels: int | None,
    server_threads: int | None,
    comparison: Comparison,
    ends: TwoEnds,
) -> None:
    """Measure raw RPC without TensorFlow: the server discards each request.

    grpc++ is tensorwire's engine. grpc is gRPC in C++ where its development files are installed
    (apt-get install libgrpc++-dev; compiled at first use), or else grpcio; the table says which.
    MB are 10^6 bytes.
    """
    from tensorwire.bench.rpc import RpcPlan, measure_remote, run, serve
    from tensorwire.report.progress import ProgressDisplay

    if ends.job == SERVER:
        if response_size is not None:
            raise UsageError("--job server: --message-size is the size of its responses")
        response_size, message_size = message_size, None
    plan = RpcPlan(
        message_size=64 if message_size is None else message_size,
        response_size=10 if response_size is None else response_size,
        concurrency=concurrency,
        channels=channels,
        server_threads=server_threads,
        total_message=total_message,
        rounds=comparison.rounds,
        protocols=comparison.protocols,
    )
    if ends.job == SERVER:
        with ProgressDisplay("bench rpc", plan.blocks) as progress:
            serve(plan, ends.port, ends.peer_timeout_s, progress)
        return
    measure_and_show(
        "bench rpc",
        plan,
        lambda plan, watcher, host_pool: (
            measure_remote(plan, ends.target, watcher)
            if ends.target
            else run(plan, watcher, host_pool)
        ),
        comparison,
    )
