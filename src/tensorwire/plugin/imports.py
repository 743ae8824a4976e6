"""Doing something right after a module was imported, whenever that is, without importing it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, callback: Callable[[], None]) -> None:
    """Calls `callback` once module `name` has been imported: now, if it has, or else as soon as.

    An exception of the callback leaves the ``import`` statement that caused it.
    """
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _AfterImport(name, callback))


class _AfterImport(MetaPathFinder):
    """Finds one module as the other finders do, and has its loader call back."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback
        self._called = False
        self._here = threading.local()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self._name or self._called or getattr(self._here, "inside", False):
            return None
        self._here.inside = True
        try:
            spec = util.find_spec(fullname)
        finally:
            self._here.inside = False
        if spec is not None and spec.loader is not None:
            # On the instance, so that the loader keeps its type: others ask it for sources.
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if not self._called:
                    self._called = True
                    self._callback()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
