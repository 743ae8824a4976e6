"""Progress on standard error, for measurements and for training on several protocols."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from tensorwire.owning_context import OwningContext
from tensorwire.units import number

if TYPE_CHECKING:
    from tensorwire.bench.train import TrainProgress


class _LogLines:
    """Lines for a log, if there is no terminal; each distinct line is written once."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def write(self, text: str) -> None:
        if text not in self._written:
            self._written.add(text)
            print(text, file=sys.stderr, flush=True)


class ProgressDisplay(OwningContext):
    """A context manager that shows the progress of the work.

    On a terminal it shows a bar, which disappears at the end. Elsewhere it prints a line when an
    activity begins for the first time.
    """

    def __init__(self, activity: str, total: int, *, is_long: bool = True) -> None:
        """`activity` is the first activity; `total` is the number of `advance` calls to come.

        `is_long`: False for work of a few seconds, which only a terminal shows.
        """
        self._log = _LogLines() if is_long else None
        self._activity = activity
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(activity, total=total)

    def _open(self, held: contextlib.ExitStack) -> None:
        if self._bar is not None:
            held.enter_context(self._bar)
        else:
            self.activity(self._activity)

    def activity(self, text: str) -> None:
        """Shows `text` as the current activity."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        elif self._log is not None:
            self._log.write(text)

    def advance(self, count: int = 1) -> None:
        """Adds `count` to the work that is done."""
        if self._bar is not None:
            self._bar.advance(self._task, count)


class TrainingDisplay(OwningContext):
    """Progress on standard error: one bar per contender on a terminal, one line per phase in a log.

    A context manager; call it with each TrainProgress.
    """

    def __init__(self, contenders: Sequence[str]) -> None:
        self._log = _LogLines()
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
