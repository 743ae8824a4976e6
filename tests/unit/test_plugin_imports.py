"""Waiting for a module to be imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest

from tensorwire.plugin.patches import after_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported, but was not yet."""
    name = f"waited_for_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text("done = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    hooks = list(sys.meta_path)
    yield name
    sys.meta_path[:] = hooks
    sys.modules.pop(name, None)


def test_the_callback_comes_once_when_the_module_is_ready(module: str) -> None:
    calls: list[bool] = []
    after_import(module, lambda: calls.append(sys.modules[module].done))
    assert calls == []
    importlib.import_module(module)
    importlib.import_module(module)
    assert calls == [True]


def test_looking_for_the_module_first_does_not_use_the_callback_up(module: str) -> None:
    calls: list[int] = []
    after_import(module, lambda: calls.append(1))
    assert util.find_spec(module) is not None
    assert calls == []
    importlib.import_module(module)
    assert calls == [1]


def test_a_module_that_is_there_calls_back_at_once(module: str) -> None:
    importlib.import_module(module)
    calls: list[int] = []
    after_import(module, lambda: calls.append(1))
    assert calls == [1]


def test_an_import_that_fails_may_be_tried_again(module: str, tmp_path: Path) -> None:
    file = tmp_path / f"{module}.py"
    good = file.read_text()
    file.write_text("raise RuntimeError('not now')\n")
    calls: list[int] = []
    after_import(module, lambda: calls.append(1))
    with pytest.raises(RuntimeError, match="not now"):
        importlib.import_module(module)
    file.write_text(good + "# another size, so that no bytecode of the first is used\n")
    importlib.invalidate_caches()
    importlib.import_module(module)
    assert calls == [1]


def test_an_exception_of_the_callback_reaches_the_import(module: str) -> None:
    def stop() -> None:
        raise SystemExit(3)

    after_import(module, stop)
    with pytest.raises(SystemExit):
        importlib.import_module(module)


def test_a_module_that_does_not_exist_is_reported_as_always() -> None:
    after_import("surely_not_there", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="surely_not_there"):
        importlib.import_module("surely_not_there")
