"""`tensorwire bench steps`."""

from __future__ import annotations

import click

from tensorwire.cli.hosts import between_hosts
from tensorwire.cli.measuring import measure_and_show
from tensorwire.cli.options import Comparison, comparison_options


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
