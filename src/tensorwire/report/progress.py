"""Progress on standard error: a bar for a person, a line now and then for a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_EVERY_S = 15.0


class ProgressDisplay:
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

    def __enter__(self) -> ProgressDisplay:
        if self._bar is not None:
            self._bar.start()
        else:
            self._line()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

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
