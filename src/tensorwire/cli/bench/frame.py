"""What every experiment does around its measurement: progress, files, tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from tensorwire.bench.record import Record
from tensorwire.bench.sides import Watcher
from tensorwire.bench.stats import Ratio
from tensorwire.cli.options import Comparison

if TYPE_CHECKING:
    from rich.table import Table

    from tensorwire.report.page import Plot


class Outcome(Protocol):
    """What a measurement returns."""

    @property
    def record(self) -> Record: ...

    @property
    def ratios(self) -> Mapping[str, Ratio]: ...


Measured = TypeVar("Measured", bound=Outcome)


def measure_and_show(
    activity: str,
    blocks: int,
    run: Callable[[Watcher], Measured],
    comparison: Comparison,
    *,
    plots: Callable[[Measured], Sequence[Plot]],
    table: Callable[[Measured], Table],
    notes: Sequence[str] = (),
) -> Measured:
    """Runs an experiment of `blocks` blocks, writes what was asked for, and prints the tables."""
    from tensorwire.report import page, tables
    from tensorwire.report.progress import ProgressDisplay

    with ProgressDisplay(activity, blocks) as progress:
        outcome = run(progress)
    page.keep(
        outcome.record,
        plots(outcome),
        outcome.ratios,
        comparison.json_path,
        comparison.report_path,
    )
    tables.show(
        table(outcome),
        *tables.ratio_tables(outcome.ratios),
        notes=[*notes, *tables.spread_notes(outcome.ratios)],
    )
    return outcome
