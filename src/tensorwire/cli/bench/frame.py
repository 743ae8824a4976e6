"""What every experiment does around its measurement: progress, files, tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tensorwire.bench.places import Places
from tensorwire.bench.record import Record, Result
from tensorwire.bench.sides import Watcher
from tensorwire.cli.options import Comparison
from tensorwire.cli.places import chosen_places
from tensorwire.cli.showing import keep_and_show

Measured = TypeVar("Measured", bound=Result)


def measure_and_show(
    activity: str,
    blocks: int,
    run: Callable[[Watcher, Places], Record[Measured]],
    comparison: Comparison,
    *,
    notes: Sequence[str] = (),
) -> Record[Measured]:
    """Runs an experiment of `blocks` blocks, writes what was asked for, and prints the tables."""
    from tensorwire.report.progress import ProgressDisplay

    with (
        ProgressDisplay(activity, blocks) as progress,
        chosen_places(comparison, progress) as places,
    ):
        record = run(progress, places)
        notes = [*places.notes, *notes]
    keep_and_show(record, comparison.json_path, comparison.report_path, notes)
    return record
