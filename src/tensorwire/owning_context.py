"""A base class for objects that own several context managers."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

_Context = TypeVar("_Context", bound="OwningContext")


class OwningContext(ABC):
    """A context manager that owns other ones.

    It exits them in reverse order at its own end. If entering one fails, those already entered are
    exited at once.
    """

    _held: contextlib.ExitStack

    @abstractmethod
    def _open(self, held: contextlib.ExitStack) -> None:
        """Enters the owned context managers through `held`."""

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
