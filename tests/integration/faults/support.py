"""Helpers for tests of faults."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from harness.survival import Holdings, Job

# No recovery takes as long on the busiest machine.
AT_LAST_S = 120.0
# Thread pools start their threads when they are first needed, with the memory of each, and gRPC
# connects to each of the two other tasks, and they to it, when it first has something to say. What
# grows with every fault is found by tests/soak.
MORE_THREADS = 16
MORE_DESCRIPTORS = 4
MORE_MB = 150.0


@contextlib.contextmanager
def nothing_leaks(job: Job, *survivors: str) -> Iterator[None]:
    """Afterwards the survivors of what happens within hold no more than before."""
    before = job.holdings(*survivors)
    yield
    deadline = time.monotonic() + 60

    def more(name: str, now: Holdings) -> bool:
        was = before[name]
        return (
            now.descriptors > was.descriptors + MORE_DESCRIPTORS
            or now.threads > was.threads + MORE_THREADS
            or now.resident_mb > was.resident_mb + MORE_MB
        )

    while grown := [name for name, now in job.holdings(*survivors).items() if more(name, now)]:
        assert time.monotonic() < deadline, (grown, before, job.holdings(*survivors))
        time.sleep(0.1)


def go_on_undisturbed(job: Job, steps: int = 20) -> None:
    """Training goes on, and no session had to begin anew."""
    before = len(job.told.recoveries)
    job.go_on(steps, AT_LAST_S)
    assert job.told.recoveries[before:] == []
