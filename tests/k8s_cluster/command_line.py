"""`tensorwire k8s` in the process of a test."""

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


def run_in_process(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_k8s(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as stop:
            main(["k8s", *arguments])
        code = stop.value.code
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return run_k8s


def one_line(done: Done, status: int = 1) -> str:
    """The one-line error of a failed command."""
    assert done.status == status, done
    assert done.err.startswith("tensorwire: error: ") and done.err.count("\n") == 1, done.err
    return done.err
