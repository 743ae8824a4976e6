"""Code that all measuring commands share: progress, hosts, files, tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from tensorwire.bench.frame.comparison_options import Comparison
from tensorwire.bench.frame.host_options import chosen_host_pool
from tensorwire.bench.frame.host_pool import HostPool
from tensorwire.bench.frame.record import Record, Result
from tensorwire.bench.frame.task_processes import Watcher

Measured = TypeVar("Measured", bound=Result)


class Plan(Protocol):
    """The plan of one measurement."""

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""


SomePlan = TypeVar("SomePlan", bound=Plan)


def measure_and_show(
    command: str,
    plan: SomePlan,
    run: Callable[[SomePlan, Watcher, HostPool], Record[Measured]],
    comparison: Comparison,
    *,
    notes: Sequence[str] = (),
) -> Record[Measured]:
    """Runs an experiment, writes the requested files, and prints the tables."""
    from tensorwire.report.progress import ProgressDisplay

    with (
        ProgressDisplay(command, plan.blocks) as progress,
        chosen_host_pool(comparison, progress) as host_pool,
    ):
        record = run(plan, progress, host_pool)
        notes = [*host_pool.notes, *notes]
    keep_and_show(record, comparison.json_path, comparison.report_path, notes)
    return record


def keep_and_show(
    record: Record[Result],
    json_path: Path | None,
    report_path: Path | None,
    notes: Sequence[str] = (),
) -> None:
    """Writes the record and the page if their paths are given, and prints the tables.

    Raises:
        TensorwireError: a file cannot be written.
    """
    from tensorwire.bench.frame import comparison
    from tensorwire.report import page, terminal

    if json_path is not None:
        record.write(json_path)
    if report_path is not None:
        page.write(report_path, comparison.report(record))
    section = comparison.section(record)
    terminal.show([dataclasses.replace(section, notes=[*notes, *section.notes])])
