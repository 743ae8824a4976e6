"""`tensorwire bench`: the experiments, each measured with all protocols in one call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.bench.models import MODELS
from tensorwire.bench.payloads import PAYLOADS
from tensorwire.bench.sides import PROTOCOLS, Setting, parse_protocols
from tensorwire.cli.options import comparison_options
from tensorwire.cli.training import train_and_show, training_options
from tensorwire.errors import UsageError

if TYPE_CHECKING:
    from tensorwire.bench.two_hosts import Hosts

_MB = "MB are 10^6 bytes."


@click.group(epilog="Example: tensorwire bench transfer --data-mb 100")
def bench() -> None:
    """Measure the layers below a training step, on this machine or between two hosts."""


@bench.command(
    epilog="""\b
Examples:
  tensorwire bench transfer --data-mb 100
  tensorwire bench transfer --ps-hosts host1:12222 --worker-hosts host2:12222 --job ps --task 0
  tensorwire bench transfer --ps-hosts host1:12222 --worker-hosts host2:12222 \\
      --job worker --task 0 --data-mb 100 --iters 100"""
)
@click.option(
    "--data-mb", type=float, default=100.0, show_default=True, help=f"Size of the tensor. {_MB}"
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
    protocols: str | None,
    rounds: int,
    tensor_fuse: bool,
    transport: str,
    json_path: Path | None,
    report_path: Path | None,
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
    setting = Setting(tensor_fuse=tensor_fuse, transport=transport)
    if ps_hosts or worker_hosts or job:
        if not (ps_hosts and worker_hosts and job):
            raise UsageError("two hosts need --ps-hosts, --worker-hosts and --job (ps or worker)")
        _check_one_task(ps_hosts, worker_hosts, task)
        protocol = parse_protocols(protocols or "grpc++")
        if len(protocol) > 1:
            raise UsageError(
                "two hosts measure one protocol a call: give the same --protocols grpc or "
                "--protocols grpc++ on both"
            )
        _transfer_between_hosts(
            hosts=Hosts(ps_hosts, worker_hosts, protocol[0], setting, peer_timeout),
            job=job,
            data_mb=data_mb,
            iters=iters,
            json_path=json_path,
            report_path=report_path,
        )
        return
    _transfer_here(
        data_mb=data_mb,
        iters=iters,
        rounds=rounds,
        protocols=protocols,
        setting=setting,
        json_path=json_path,
        report_path=report_path,
    )


def _transfer_here(
    *,
    data_mb: float,
    iters: int,
    rounds: int,
    protocols: str | None,
    setting: Setting,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    from tensorwire.bench import stats
    from tensorwire.bench.transfer import GRPC_LIMIT_MB, TransferPlan, run
    from tensorwire.report import page, tables
    from tensorwire.report.progress import ProgressDisplay

    notes = []
    chosen = parse_protocols(protocols) if protocols is not None else PROTOCOLS
    if protocols is None and data_mb >= GRPC_LIMIT_MB:
        chosen = ("grpc++",)
        notes.append("grpc is left out: its messages end at 2 GB")
    plan = TransferPlan(data_mb, iters, rounds, chosen, setting)
    with ProgressDisplay("bench transfer", len(stats.split(iters, rounds))) as progress:
        outcome = run(plan, progress)
    plots = page.transfer_plots(outcome.results, outcome.ceilings)
    page.keep(outcome.record, plots, outcome.ratios, json_path, report_path)
    tables.show(
        tables.transfer_table(outcome.results, outcome.ceilings),
        *tables.ratio_tables(outcome.ratios),
        notes=[*notes, *tables.spread_notes(outcome.ratios)],
    )


def _transfer_between_hosts(
    *,
    hosts: Hosts,
    job: str,
    data_mb: float,
    iters: int,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    from tensorwire.bench import two_hosts
    from tensorwire.bench.transfer import check_grpc_limit, large_tensor
    from tensorwire.report import page, tables
    from tensorwire.report.progress import ProgressDisplay

    check_grpc_limit(data_mb, (hosts.protocol,))
    with ProgressDisplay("starting the task", iters) as progress:
        if job == "ps":
            two_hosts.serve(hosts, progress)
            return
        outcome = two_hosts.measure(hosts, large_tensor(data_mb), iters, progress)
    plots = page.transfer_plots(outcome.results, outcome.ceilings)
    page.keep(outcome.record, plots, outcome.ratios, json_path, report_path)
    tables.show(tables.transfer_table(outcome.results, outcome.ceilings))
    click.echo(f"transfer rate: {outcome.results[0].mb_per_s:.6f} MB/s")


def _check_one_task(ps_hosts: str, worker_hosts: str, task: int) -> None:
    from tensorwire.cluster import split_address

    for flag, hosts in (("--ps-hosts", ps_hosts), ("--worker-hosts", worker_hosts)):
        if "," in hosts:
            raise UsageError(f"{flag} {hosts}: bench transfer uses one ps and one worker")
        split_address(hosts)
    if task != 0:
        raise UsageError(f"--task {task}: there is one ps and one worker, each --task 0")


@bench.command(
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
def steps(
    *,
    case: str | None,
    iters: int,
    protocols: str | None,
    rounds: int,
    tensor_fuse: bool,
    transport: str,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Time steps that move little: one tiny tensor, and many small ones."""
    from tensorwire.bench import stats
    from tensorwire.bench.steps import CASES, StepsPlan, run
    from tensorwire.report import page, tables
    from tensorwire.report.progress import ProgressDisplay

    plan = StepsPlan(
        cases=(case,) if case is not None else tuple(CASES),
        iters=iters,
        rounds=rounds,
        protocols=parse_protocols(protocols) if protocols is not None else PROTOCOLS,
        setting=Setting(tensor_fuse=tensor_fuse, transport=transport),
    )
    with ProgressDisplay("bench steps", len(stats.split(iters, rounds))) as progress:
        outcome = run(plan, progress)
    plots = page.steps_plots(outcome.results)
    page.keep(outcome.record, plots, outcome.ratios, json_path, report_path)
    tables.show(
        tables.steps_table(outcome.results),
        *tables.ratio_tables(outcome.ratios),
        notes=tables.spread_notes(outcome.ratios),
    )


@bench.command(
    epilog="""\b
Examples:
  tensorwire bench strategy
  tensorwire bench strategy --case tiny --iters 5000 --json strategy.json"""
)
@click.option(
    "--case",
    type=click.Choice(["read", "tiny", "both"]),
    default="both",
    show_default=True,
    help=f"read: a function that sums 10 MB of the ps; tiny: one that adds two numbers. {_MB}",
)
@click.option(
    "--iters",
    type=click.IntRange(min=1),
    help="Measured functions of each case and protocol.  [default: read 200, tiny 1000]",
)
@comparison_options(default_rounds=10, tensor_fuse=False)
def strategy(
    *,
    case: str,
    iters: int | None,
    protocols: str | None,
    rounds: int,
    transport: str,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Schedule functions with a ParameterServerStrategy: how many a worker runs in a second."""
    from tensorwire.bench.strategy import CASES, StrategyPlan, run
    from tensorwire.report import page, tables
    from tensorwire.report.progress import ProgressDisplay

    plan = StrategyPlan(
        cases=tuple(CASES) if case == "both" else (case,),
        iters=iters,
        rounds=rounds,
        protocols=parse_protocols(protocols) if protocols is not None else PROTOCOLS,
        setting=Setting(transport=transport),
    )
    blocks = sum(len(plan.blocks(case)) for case in plan.cases)
    with ProgressDisplay("bench strategy", blocks) as progress:
        outcome = run(plan, progress)
    plots = page.strategy_plots(outcome.results)
    page.keep(outcome.record, plots, outcome.ratios, json_path, report_path)
    tables.show(
        tables.strategy_table(outcome.results),
        *tables.ratio_tables(outcome.ratios),
        notes=tables.spread_notes(outcome.ratios),
    )


@bench.command(
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
    help="Connections to the ps, each with requests of its own.",
)
@click.option(
    "--message-size",
    type=int,
    default=4096,
    show_default=True,
    help="Bytes of a tensor, in the mean.",
)
@click.option(
    "--payload",
    type=click.Choice(PAYLOADS),
    default="uniform",
    show_default=True,
    help="uniform: all of one size; random: from 1 byte to twice the size, all as likely; "
    "skewed: of ten tensors six of a tenth of the size, three of it, one of 6.4 times it.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Requests that a client has on their way.",
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    help="Measured requests of each protocol.  [default: 200000; fewer where tensors are large]",
)
@comparison_options(default_rounds=10, tensor_fuse=False)
def serve(
    *,
    clients: int,
    message_size: int,
    payload: str,
    in_flight: int,
    requests: int | None,
    protocols: str | None,
    rounds: int,
    transport: str,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Ask one ps for tensors from many clients: requests a second, and how long one takes.

    Payloads are named after those of TF-gRPC-Bench; all three have the same mean.
    """
    from tensorwire.bench import stats
    from tensorwire.bench.serve import ServePlan, default_requests, run
    from tensorwire.report import page, tables
    from tensorwire.report.progress import ProgressDisplay

    plan = ServePlan(
        clients=clients,
        message_size=message_size,
        payload=payload,
        in_flight=in_flight,
        requests=requests or default_requests(message_size, clients * in_flight * rounds),
        rounds=rounds,
        protocols=parse_protocols(protocols) if protocols is not None else PROTOCOLS,
        setting=Setting(transport=transport),
    )
    with ProgressDisplay("bench serve", len(stats.split(plan.requests, rounds))) as progress:
        outcome = run(plan, progress)
    plots = page.serve_plots(outcome.results)
    page.keep(outcome.record, plots, outcome.ratios, json_path, report_path)
    tables.show(
        tables.serve_table(outcome.results),
        *tables.ratio_tables(outcome.ratios),
        notes=tables.spread_notes(outcome.ratios),
    )


@bench.command(
    epilog="""\b
Examples:
  tensorwire bench train --model flights
  tensorwire bench train --model ctr --tensor-fuse --json train.json"""
)
@click.option(
    "--model",
    type=click.Choice(list(MODELS)),
    default="flights",
    show_default=True,
    help="flights: the demo's; ctr: 26 categorical and 200 further small columns, synthetic.",
)
@training_options
@comparison_options(default_rounds=8)
def train(
    *,
    model: str,
    steps: int,
    ps: int,
    workers: int,
    batch_size: int,
    protocols: str | None,
    rounds: int,
    tensor_fuse: bool,
    transport: str,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Train Wide & Deep with ps and workers of this machine: steps and examples a second.

    Beside them the AUC on examples that training never sees, and what a step sends between the
    tasks: MB (of 10^6 bytes) and messages, a message being a call from one task to another, or a
    tensor that was sent unasked.
    """
    from tensorwire.bench.train import TrainPlan

    plan = TrainPlan(
        model=model,
        protocols=parse_protocols(protocols) if protocols is not None else PROTOCOLS,
        ps=ps,
        workers=workers,
        steps=steps,
        batch_size=batch_size,
        rounds=rounds,
        setting=Setting(tensor_fuse=tensor_fuse, transport=transport),
    )
    train_and_show("bench train", plan, json_path, report_path)
