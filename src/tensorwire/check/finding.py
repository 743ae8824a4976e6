"""One finding of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """The state of one thing that a job needs, for people."""

    state: State
    """"warning": a job runs, but more slowly or not always."""
    subject: str
    text: str
    advice: str = ""
    """What to do about it; empty if `state` is "ok"."""
