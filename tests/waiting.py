"""Waiting for what a test can only see by looking again."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    holds: Callable[[], object], timeout_s: float, why: Callable[[], object] = lambda: None
) -> None:
    """Returns when `holds()` does; fails with `why()` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
