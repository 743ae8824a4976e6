"""Code that all measuring commands share: progress, hosts, files, tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from tensorwire.cli.hosts import chosen_host_pool
from tensorwire.cli.options import Comparison
from tensorwire.measure.host_pool import HostPool
from tensorwire.measure.record import Record, Result
from tensorwire.measure.task_processes import Watcher

if TYPE_CHECKING:
    from tensorwire.bench.train import TrainPlan

Command = TypeVar("Command", bound=Callable[..., Any])
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


def train_and_show(command: str, plan: TrainPlan, comparison: Comparison) -> None:
    """Trains with a progress display, then writes and prints the results."""
    from tensorwire.bench.train import run
    from tensorwire.report.progress import TrainingDisplay

    names = [each.name for each in plan.contenders]
    with (
        TrainingDisplay(names) as display,
        chosen_host_pool(comparison, display) as host_pool,
    ):
        record = run(command, plan, display, host_pool)
        notes = host_pool.notes
    keep_and_show(record, comparison.json_path, comparison.report_path, notes)


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
    from tensorwire.measure import comparison
    from tensorwire.report import page, terminal

    if json_path is not None:
        record.write(json_path)
    if report_path is not None:
        page.write(report_path, page.of_record(record))
    section = comparison.section(record)
    terminal.show([dataclasses.replace(section, notes=[*notes, *section.notes])])


def training_options(command: Command) -> Command:
    """Options for the number of training tasks and the length of training."""
    options = [
        click.option(
            "--steps",
            type=click.IntRange(min=1),
            default=2000,
            show_default=True,
            help="Training steps of all workers together, for each protocol.",
        ),
        click.option("--ps", type=click.IntRange(1, 16), default=2, show_default=True),
        click.option("--workers", type=click.IntRange(1, 16), default=2, show_default=True),
        click.option(
            "--batch-size",
            type=click.IntRange(1, 65536),
            default=256,
            show_default=True,
            help="Examples of a step of one worker.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command
