"""What the commands that train a model have in common: `demo` and `bench train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tensorwire.cli.options import Comparison
from tensorwire.cli.showing import keep_and_show

if TYPE_CHECKING:
    from tensorwire.bench.train import TrainPlan

Command = TypeVar("Command", bound=Callable[..., Any])


def training_options(command: Command) -> Command:
    """How many tasks train, and for how long."""
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


def train_and_show(command: str, plan: TrainPlan, comparison: Comparison) -> None:
    """Trains, shows how far it is, and says what came of it."""
    from tensorwire.bench.train import run
    from tensorwire.cli.host_pool import chosen_host_pool
    from tensorwire.report.training_progress import TrainingDisplay

    names = [each.name for each in plan.contenders]
    with TrainingDisplay(names) as display, chosen_host_pool(comparison, display) as host_pool:
        record = run(command, plan, display, host_pool)
        notes = host_pool.notes
    keep_and_show(record, comparison.json_path, comparison.report_path, notes)
