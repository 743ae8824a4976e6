"""Reports of the training scripts in this folder to their test: values and counters."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any


def report(directory: str, task: str, **values: Any) -> None:
    """Writes `values` and, if tensorwire is loaded in this process, its counters."""
    loader = sys.modules.get("tensorwire.plugin.loader")
    record = {**values, "stats": loader.stats() if loader is not None else None}
    partial = Path(directory, f"{task}.partial")
    partial.write_text(json.dumps(record))
    partial.rename(Path(directory, f"{task}.json"))


def keep_reporting(directory: str, task: str) -> None:
    """Reports the counters repeatedly, for a task that serves until it is ended."""

    def loop() -> None:
        while True:
            report(directory, task)
            time.sleep(0.3)

    threading.Thread(target=loop, daemon=True).start()


def await_reports(directory: str, own: str) -> None:
    """Waits until the other tasks that keep reporting have counted all that was sent before.

    A report may have been begun before this call, so each task's second one is awaited.
    """
    for _ in range(2):
        others = [path for path in Path(directory).glob("*.json") if path.stem != own]
        for path, told in [(path, path.stat().st_mtime_ns) for path in others]:
            await_new(path, told)


def await_new(path: Path, told_ns: int, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while path.stat().st_mtime_ns == told_ns:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} was not written again within {timeout_s:g} s")
        time.sleep(0.05)


def await_file(path: Path, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear within {timeout_s:g} s")
        time.sleep(0.05)
