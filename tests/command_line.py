"""Commands of `tensorwire` in the process of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tensorwire.cli.main import main


class Done(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Done]


def run_in_process(capsys: pytest.CaptureFixture[str], *before: str) -> Run:
    """Runs the command line `before` with more arguments."""

    def run(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as stop:
            main([*before, *map(str, arguments)])
        code = stop.value.code or 0
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return run


def one_line(done: Done, status: int = 1) -> str:
    """The one-line error of a failed command."""
    assert done.status == status, done
    assert done.err.startswith("tensorwire: error: ") and done.err.count("\n") == 1, done.err
    return done.err
