"""Helpers for tests of faults."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from harness.survival import Holdings, Job

# Longer than any recovery, even on a busy machine.
AT_LAST_S = 120.0
# Thread pools start their threads on demand, each with its memory. gRPC opens connections to and
# from the two other tasks on demand. Growth with every fault is found by tests/soak.
MORE_THREADS = 16
MORE_DESCRIPTORS = 4
MORE_MB = 150.0


@contextlib.contextmanager
def nothing_leaks(job: Job, *survivors: str) -> Iterator[None]:
    """Checks that `survivors` hold no more resources after the context than before it."""
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
    """Checks that training continues without a restart of a session."""
    before = len(job.told.recoveries)
    job.go_on(steps, AT_LAST_S)
    assert job.told.recoveries[before:] == []
