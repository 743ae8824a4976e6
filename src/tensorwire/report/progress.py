"""Progress on standard error: of measurements, and of a training on several protocols."""

from __future__ import annotations

import contextlib
import sys
import time
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

_LINE_EVERY_S = 15.0


class ProgressDisplay(OwningContext):
    """A context manager that shows how far the work is.

    On a terminal it is a bar that goes away; elsewhere a line when the activity changes, and one
    every 15 s while it lasts.
    """

    def __init__(self, activity: str, total: int) -> None:
        """`activity` is what happens first; `total` is the number of `advance` calls to come."""
        self._activity = activity
        self._total = total
        self._done = 0
        self._last_line = 0.0
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
            self._line()

    def activity(self, text: str) -> None:
        """Says what happens now."""
        if text == self._activity:
            return
        self._activity = text
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        else:
            self._line()

    def advance(self, count: int = 1) -> None:
        """`count` more of the total are done."""
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif time.monotonic() - self._last_line > _LINE_EVERY_S:
            self._line()

    def _line(self) -> None:
        self._last_line = time.monotonic()
        done = f" ({self._done} of {self._total})" if self._done else ""
        print(f"{self._activity}{done}", file=sys.stderr, flush=True)


_TRAINING_LINE_EVERY_S = 5.0
_WAITING_LINE_EVERY_S = 30.0


class TrainingDisplay(OwningContext):
    """Progress on standard error: a bar a contender for a person, a line now and then for a log.

    A context manager; call it with each TrainProgress.
    """

    def __init__(self, contenders: Sequence[str]) -> None:
        self._last_line = 0.0
        self._last_phase: tuple[str, str] | None = None
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
            print(text, file=sys.stderr, flush=True)
        else:
            for bar in self._bar_of.values():
                self._bars.update(bar, phase=text)

    def advance(self, count: int = 1) -> None:
        """Watcher interface: nothing is counted before the first contender starts."""

    def __call__(self, progress: TrainProgress) -> None:
        rate = "" if progress.steps_per_s is None else f"{number(progress.steps_per_s)} steps/s"
        loss = "" if progress.loss is None else f"loss {progress.loss:.4f}"
        if self._bars is None:
            self._line(progress, rate, loss)
            return
        bar = self._bar_of[progress.contender]
        self._bars.update(
            bar, total=progress.steps, completed=progress.step, loss=loss, phase=progress.phase
        )
        if rate:
            self._bars.update(bar, rate=rate)

    def _line(self, progress: TrainProgress, rate: str, loss: str) -> None:
        phase = (progress.contender, progress.phase)
        now = time.monotonic()
        quiet_s = _TRAINING_LINE_EVERY_S if rate else _WAITING_LINE_EVERY_S
        if phase == self._last_phase and now - self._last_line < quiet_s:
            return
        self._last_phase = phase
        self._last_line = now
        words = [f"step {progress.step} of {progress.steps}" if rate else "", rate, loss]
        text = ", ".join([f"{progress.contender}: {progress.phase}", *filter(None, words)])
        print(text, file=sys.stderr, flush=True)
