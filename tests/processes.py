"""Checks whether processes have ended. Zombies (ended, but not waited for) count as ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path


def wait_gone(pids: Sequence[int], timeout_s: float = 10.0) -> list[int]:
    """The processes of `pids` that still run, zombies not counted, after at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        alive = [pid for pid in pids if is_running(pid)]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
