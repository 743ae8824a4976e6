"""`tensorwire bench strategy`."""

from __future__ import annotations

import click

from tensorwire.cli.hosts import between_hosts
from tensorwire.cli.measuring import measure_and_show
from tensorwire.cli.options import Comparison, comparison_options


@click.command(
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
    help="read: a function that sums 10 MB (of 10^6 bytes) of the ps; tiny: one that adds two "
    "numbers.",
)
@click.option(
    "--iters",
    type=click.IntRange(min=1),
    help="Measured functions of each case and protocol.  [default: read 200, tiny 1000]",
)
@comparison_options(default_rounds=10, tensor_fuse=False)
@between_hosts("bench strategy")
def strategy(
    *,
    case: str,
    iters: int | None,
    comparison: Comparison,
) -> None:
    """Schedule functions with a ParameterServerStrategy: how many a worker runs in a second."""
    from tensorwire.bench.strategy import CASES, StrategyPlan, run

    plan = StrategyPlan(
        cases=tuple(CASES) if case == "both" else (case,),
        iters=iters,
        rounds=comparison.rounds,
        protocols=comparison.protocols,
        setting=comparison.setting,
    )
    measure_and_show("bench strategy", plan, run, comparison)
