"""Progress on standard error."""

from __future__ import annotations

import contextlib
import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from tensorwire.owning_context import OwningContext


class ProgressDisplay(OwningContext):
    """A context manager that shows the progress of the work.

    On a terminal it shows a bar, which disappears at the end. Elsewhere it prints a line when an
    activity begins for the first time.
    """

    def __init__(self, activity: str, total: int, *, is_long: bool = True) -> None:
        """`activity` is the first activity; `total` is the number of `advance` calls to come.

        `is_long`: False for work of a few seconds, which only a terminal shows.
        """
        self._is_logged = is_long
        self._logged: set[str] = set()
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
        elif self._is_logged and text not in self._logged:
            self._logged.add(text)
            print(text, file=sys.stderr, flush=True)

    def advance(self, count: int = 1) -> None:
        """Adds `count` to the work that is done."""
        if self._bar is not None:
            self._bar.advance(self._task, count)
