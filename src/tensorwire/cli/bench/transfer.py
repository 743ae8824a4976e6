"""`tensorwire bench transfer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorwire.cli.bench.frame import measure_and_show
from tensorwire.cli.options import Comparison, comparison_options
from tensorwire.errors import UsageError

if TYPE_CHECKING:
    from tensorwire.bench.two_hosts import Hosts


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
@click.option("--ps-hosts", metavar="HOST:PORT", help="Two hosts: where the ps listens.")
@click.option("--worker-hosts", metavar="HOST:PORT", help="Two hosts: where the worker listens.")
@click.option("--job", type=click.Choice(["ps", "worker"]), help="Two hosts: this one's part.")
@click.option("--task", type=int, default=0, show_default=True, help="Two hosts: the task's index.")
@click.option(
    "--peer-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Two hosts: seconds to wait for the other.",
)
def transfer(
    *,
    data_mb: float,
    iters: int | None,
    comparison: Comparison,
    ps_hosts: str | None,
    worker_hosts: str | None,
    job: str | None,
    task: int,
    peer_timeout: float,
) -> None:
    """Move one tensor from worker to ps, over and over.

    Measured beside it: one raw TCP stream with buffers of the same size, and one memcpy of such a
    buffer. On two hosts the worker ends with the line `transfer rate: … MB/s`; MB are 10^6 bytes.
    """
    from tensorwire.bench.transfer import check_data_mb
    from tensorwire.bench.two_hosts import Hosts

    check_data_mb(data_mb)
    if iters is None:
        iters = max(30, min(300, round(3000 / data_mb)))
    if ps_hosts or worker_hosts or job:
        if not (ps_hosts and worker_hosts and job):
            raise UsageError("two hosts need --ps-hosts, --worker-hosts and --job (ps or worker)")
        _check_one_task(ps_hosts, worker_hosts, task)
        protocols = comparison.named_protocols or ("grpc++",)
        if len(protocols) > 1:
            raise UsageError(
                "two hosts measure one protocol a call: give the same --protocols grpc or "
                "--protocols grpc++ on both"
            )
        hosts = Hosts(ps_hosts, worker_hosts, protocols[0], comparison.setting, peer_timeout)
        _transfer_between_hosts(hosts, job, data_mb, iters, comparison)
    else:
        _transfer_here(data_mb, iters, comparison)


def _transfer_here(data_mb: float, iters: int, comparison: Comparison) -> None:
    from tensorwire.bench import stats
    from tensorwire.bench.transfer import GRPC_LIMIT_MB, TransferPlan, run

    notes = []
    protocols = comparison.protocols
    if comparison.named_protocols is None and data_mb >= GRPC_LIMIT_MB:
        protocols = ("grpc++",)
        notes.append("grpc is left out: its messages end at 2 GB")
    plan = TransferPlan(data_mb, iters, comparison.rounds, protocols, comparison.setting)
    measure_and_show(
        "bench transfer",
        len(stats.split(plan.iters, plan.rounds)),
        lambda watcher, places: run(plan, watcher, places),
        comparison,
        notes=notes,
    )


def _transfer_between_hosts(
    hosts: Hosts, job: str, data_mb: float, iters: int, comparison: Comparison
) -> None:
    from tensorwire.bench import two_hosts
    from tensorwire.bench.transfer import check_grpc_limit, large_tensor
    from tensorwire.report.progress import ProgressDisplay

    check_grpc_limit(data_mb, (hosts.protocol,))
    if job == "ps":
        with ProgressDisplay("starting the task", iters) as progress:
            two_hosts.serve(hosts, progress)
        return
    record = measure_and_show(
        "starting the task",
        iters,
        lambda watcher, _: two_hosts.measure(hosts, large_tensor(data_mb), iters, watcher),
        comparison,
    )
    click.echo(f"transfer rate: {record.results[0].mb_per_s:.6f} MB/s")


def _check_one_task(ps_hosts: str, worker_hosts: str, task: int) -> None:
    from tensorwire.cluster import split_address

    for flag, hosts in (("--ps-hosts", ps_hosts), ("--worker-hosts", worker_hosts)):
        if "," in hosts:
            raise UsageError(f"{flag} {hosts}: bench transfer uses one ps and one worker")
        split_address(hosts)
    if task != 0:
        raise UsageError(f"--task {task}: there is one ps and one worker, each --task 0")
