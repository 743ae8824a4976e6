"""What every experiment does around its measurement: progress, files, tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tensorwire.cli.host_pool import chosen_host_pool
from tensorwire.cli.options import Comparison
from tensorwire.cli.showing import keep_and_show
from tensorwire.measure.host_pool import HostPool
from tensorwire.measure.record import Record, Result
from tensorwire.measure.tasks import Watcher

Measured = TypeVar("Measured", bound=Result)


def measure_and_show(
    activity: str,
    blocks: int,
    run: Callable[[Watcher, HostPool], Record[Measured]],
    comparison: Comparison,
    *,
    notes: Sequence[str] = (),
) -> Record[Measured]:
    """Runs an experiment of `blocks` blocks, writes what was asked for, and prints the tables."""
    from tensorwire.report.progress import ProgressDisplay

    with (
        ProgressDisplay(activity, blocks) as progress,
        chosen_host_pool(comparison, progress) as host_pool,
    ):
        record = run(progress, host_pool)
        notes = [*host_pool.notes, *notes]
    keep_and_show(record, comparison.json_path, comparison.report_path, notes)
    return record
