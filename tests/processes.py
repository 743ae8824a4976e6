"""Whether processes run, have stopped, or have ended. Zombies (not waited for) count as ended."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorwire.bench.lab import TaskProcess


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
        return _state(Path(f"/proc/{pid}")) != "Z"
    except OSError:
        return False


def _state(folder: Path) -> str:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]


def freeze(task: TaskProcess, timeout_s: float = 10.0) -> None:
    """Stops a task, and waits until all its threads have stopped: until then they may answer."""
    task.signal(signal.SIGSTOP)
    deadline = time.monotonic() + timeout_s
    while any(_state(thread) != "T" for thread in Path(f"/proc/{task.pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"{task.name} does not stop"
        time.sleep(0.001)


@contextlib.contextmanager
def frozen(task: TaskProcess) -> Iterator[None]:
    """Within the context, the task is stopped."""
    freeze(task)
    try:
        yield
    finally:
        task.signal(signal.SIGCONT)
