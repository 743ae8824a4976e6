"""The commands that train a model: `tensorwire demo` and `tensorwire bench train`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from tensorwire.bench.experiments.train import TrainPlan, TrainProgress, run
from tensorwire.bench.frame.comparison_options import Comparison, comparison_options
from tensorwire.bench.frame.contenders import EXACT_REWRITES, parse_protocols
from tensorwire.bench.frame.host_options import between_hosts, chosen_host_pool
from tensorwire.bench.frame.showing import keep_and_show
from tensorwire.cli.click_extensions import options_of
from tensorwire.cli.termination import end_in_order
from tensorwire.owning_context import OwningContext
from tensorwire.report.progress import LogLines
from tensorwire.units import number

_JOBS = {"ps": "ps", "workers": "worker"}


class TrainingDisplay(OwningContext):
    """Progress on standard error: one bar per contender on a terminal, one line per phase in a log.

    A context manager; call it with each TrainProgress.
    """

    def __init__(self, contenders: Sequence[str]) -> None:
        self._log = LogLines()
        self._bars: Progress | None = None
        self._bar_of: dict[str, TaskID] = {}
        console = Console(stderr=True)
        if console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description:12}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]:>16}"),
                TextColumn("{task.fields[loss]:>11}"),
                TextColumn("{task.fields[phase]}"),
                console=console,
            )
            for name in contenders:
                self._bar_of[name] = self._bars.add_task(
                    name, total=None, rate="", loss="", phase="waits"
                )

    def _open(self, held: contextlib.ExitStack) -> None:
        if self._bars is not None:
            held.enter_context(self._bars)

    def activity(self, text: str) -> None:
        """Watcher interface: the activity before the first contender starts."""
        if self._bars is None:
            self._log.write(text)
        else:
            for bar in self._bar_of.values():
                self._bars.update(bar, phase=text)

    def advance(self, count: int = 1) -> None:
        """Watcher interface: nothing is counted before the first contender starts."""

    def __call__(self, progress: TrainProgress) -> None:
        if self._bars is None:
            self._log.write(f"{progress.contender}: {progress.phase}")
            return
        rate = "" if progress.steps_per_s is None else f"{number(progress.steps_per_s)} steps/s"
        loss = "" if progress.loss is None else f"loss {progress.loss:.4f}"
        bar = self._bar_of[progress.contender]
        self._bars.update(
            bar, total=progress.steps, completed=progress.step, loss=loss, phase=progress.phase
        )
        if rate:
            self._bars.update(bar, rate=rate)


def train_and_show(command: str, plan: TrainPlan, comparison: Comparison) -> None:
    """Trains with a progress display, then writes and prints the results."""
    names = [each.name for each in plan.contenders]
    with (
        TrainingDisplay(names) as display,
        chosen_host_pool(comparison, display) as host_pool,
    ):
        record = run(command, plan, display, host_pool)
        notes = host_pool.notes
    keep_and_show(record, comparison.json_path, comparison.report_path, notes)


@click.command(
    epilog="""\b
Examples:
  tensorwire demo
  tensorwire demo --protocol grpc++ --steps 600 --json demo.json"""
)
@click.option(
    "--protocol",
    "single_protocols",
    multiple=True,
    metavar="NAME",
    help="One protocol, like --protocols; may be repeated.",
)
@options_of(TrainPlan, ("steps", "ps", "workers", "batch_size"))
@comparison_options(default_rounds=8, lab=False, rewrites=True)
def demo(
    *,
    single_protocols: tuple[str, ...],
    comparison: Comparison,
    **options: Any,
) -> None:
    """Train Wide & Deep on real flights: on grpc, grpc++, and grpc++ with all exact rewrites.

    Predicts which flights that left New York in 2013 arrived more than 15 minutes late, with
    parameter servers and asynchronous workers as processes of this machine. The protocols take
    turns; the first turn is warm-up. MB are 10^6 bytes; a message is a call from one task to
    another, or a pushed tensor; the AUC is measured on months that are not used for training.
    If protocols are named, only these are measured, without rewrites.
    """
    end_in_order()
    protocols = comparison.protocols
    if single_protocols:
        protocols = parse_protocols(
            ",".join([*single_protocols, *(comparison.named_protocols or ())])
        )
    setting = comparison.setting
    is_named = single_protocols or comparison.named_protocols is not None
    if comparison.named_rewrites is None and not is_named:
        setting = dataclasses.replace(setting, rewrites=(*setting.rewrites, EXACT_REWRITES))
    common = {**comparison.of_plan, "protocols": protocols, "setting": setting}
    train_and_show("demo", TrainPlan(**options, **common), comparison)


@click.command(
    epilog="""\b
Examples:
  tensorwire bench train --model flights
  tensorwire bench train --model ctr --rewrites exact_rewrites,exact_rewrites+bfloat16
  tensorwire bench train --model ctr --tensor-fuse --json train.json"""
)
@options_of(TrainPlan)
@comparison_options(default_rounds=8, rewrites=True)
@between_hosts("bench train", several=True)
def train(*, comparison: Comparison, **options: Any) -> None:
    """Train Wide & Deep with ps and workers: steps and examples a second.

    Also measures the AUC on examples that are not used for training, and what a step sends between
    the tasks: MB (of 10^6 bytes) and messages. A message is a call from one task to another, or a
    pushed tensor.
    """
    if comparison.part is not None:
        options |= {job: len(comparison.part.hosts[of]) for job, of in _JOBS.items()}
    train_and_show("bench train", TrainPlan(**options, **comparison.of_plan), comparison)
