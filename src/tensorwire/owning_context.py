"""The frame of what holds several things from `__enter__` to `__exit__`."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

_Context = TypeVar("_Context", bound="OwningContext")


class OwningContext(ABC):
    """A context manager that owns other ones.

    What it has entered is left in the reverse order at its end, and at once where entering the next
    fails.
    """

    _held: contextlib.ExitStack

    @abstractmethod
    def _open(self, held: contextlib.ExitStack) -> None:
        """Enters them; `held` takes them."""

    def __enter__(self: _Context) -> _Context:
        with contextlib.ExitStack() as held:
            self._open(held)
            self._held = held.pop_all()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held.__exit__(exception_type, exception, traceback)
