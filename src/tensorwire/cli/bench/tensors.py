"""`tensorwire bench transfer`, `tensorwire bench steps` and `tensorwire bench tails`."""

from __future__ import annotations

import click

from tensorwire.cli.click_extensions import Number
from tensorwire.cli.hosts import between_hosts
from tensorwire.cli.measuring import measure_and_show
from tensorwire.cli.options import Comparison, comparison_options


@click.command(
    epilog="""\b
Examples:
  tensorwire bench transfer --data-mb 100
  tensorwire bench transfer --ps-hosts host1:12222 --worker-hosts host2:12222 --job ps --task 0
  tensorwire bench transfer --ps-hosts host1:12222 --worker-hosts host2:12222 \\
      --job worker --task 0 --data-mb 100 --iters 100"""
)
@click.option(
    "--data-mb", type=float, default=100.0, show_default=True, help="MB of the tensor (10^6 bytes)."
)
@click.option(
    "--iters",
    type=click.IntRange(min=1),
    help="Measured steps of each protocol.  [default: 30, and up to 300 for a small tensor]",
)
@comparison_options(default_rounds=10)
@between_hosts("bench transfer")
def transfer(*, data_mb: float, iters: int | None, comparison: Comparison) -> None:
    """Move one tensor from worker to ps repeatedly.

    Also measures one raw TCP stream with buffers of the same size, and one memcpy of such a
    buffer, or iperf3 over a lab's link. On two hosts the worker ends with the line `transfer rate:
    … MB/s`, of the last protocol; MB are 10^6 bytes.
    """
    from tensorwire.bench.transfer import GRPC_LIMIT_MB, TransferPlan, check_data_mb, run

    check_data_mb(data_mb)
    if iters is None:
        iters = max(30, min(300, round(3000 / data_mb)))
    notes = []
    protocols = comparison.protocols
    if comparison.named_protocols is None and data_mb >= GRPC_LIMIT_MB:
        protocols = ("grpc++",)
        notes.append("grpc is left out: its messages are limited to 2 GB")
    plan = TransferPlan(data_mb, iters, comparison.rounds, protocols, comparison.setting)
    record = measure_and_show("bench transfer", plan, run, comparison, notes=notes)
    if comparison.part is not None:
        click.echo(f"transfer rate: {record.results[-1].mb_per_s:.6f} MB/s")


@click.command(
    epilog="""\b
Examples:
  tensorwire bench steps
  tensorwire bench steps --case many --tensor-fuse --json steps.json"""
)
@click.option(
    "--case",
    type=click.Choice(["tiny", "many"]),
    help="tiny: one tensor of 4 KB; many: 200 tensors of 4 KB.  [default: both]",
)
@click.option(
    "--iters",
    type=click.IntRange(min=1),
    default=600,
    show_default=True,
    help="Measured steps of each case and protocol.",
)
@comparison_options(default_rounds=20)
@between_hosts("bench steps")
def steps(
    *,
    case: str | None,
    iters: int,
    comparison: Comparison,
) -> None:
    """Time steps that move little: one tiny tensor, and many small ones."""
    from tensorwire.bench.steps import CASES, StepsPlan, run

    plan = StepsPlan(
        cases=(case,) if case is not None else tuple(CASES),
        iters=iters,
        rounds=comparison.rounds,
        protocols=comparison.protocols,
        setting=comparison.setting,
    )
    measure_and_show("bench steps", plan, run, comparison)


@click.command(
    epilog="""\b
Examples:
  tensorwire bench tails
  tensorwire bench tails --layer rpc --lab hosts=3,rate=10gbit"""
)
@click.option(
    "--layer",
    type=click.Choice(["tensorflow", "rpc"]),
    default="tensorflow",
    show_default=True,
    help="tensorflow: steps of a session; rpc: requests without TensorFlow.",
)
@click.option(
    "--bulk-mb",
    type=float,
    default=100.0,
    show_default=True,
    help="MB (10^6 bytes) of a tensor of the other worker.",
)
@click.option(
    "--seconds",
    type=Number(min=0.1, max=600),
    default=1.0,
    show_default=True,
    help="Time of the small steps in each round, case and protocol.",
)
@comparison_options(default_rounds=10)
def tails(*, layer: str, bulk_mb: float, seconds: float, comparison: Comparison) -> None:
    """Time small steps while another worker moves large tensors.

    One worker assigns a tensor of 4 KB to a ps repeatedly: alone, and while a second worker assigns
    a large tensor to the same ps without pause. Shown are the median, p99 and p99.9 of the small
    steps, and the rate of the large tensors.
    """
    from tensorwire.bench.tails import TailsPlan, run

    plan = TailsPlan(
        layer, bulk_mb, seconds, comparison.rounds, comparison.protocols, comparison.setting
    )
    measure_and_show("bench tails", plan, run, comparison)
