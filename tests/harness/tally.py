"""Counts what the tests of a run did, for the summary of .ci/run-stages.

`tasks`: processes that were started as tasks of a cluster. `bytes`: what tasks sent over grpc++; a
lower bound, because only tasks that a test asks before they end are counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tensorwire.bench.lab import local

counted: Counter[str] = Counter()


def count_bytes(stats: Mapping[str, Any] | None) -> None:
    """Counts the bytes that a task has sent, by what tensorwire.tf.stats() says there."""
    counted["bytes"] += (stats or {}).get("tx_bytes", 0)


@contextmanager
def counting_tasks() -> Iterator[None]:
    start = local.start_process

    def start_and_count(argv: Sequence[str], **options: Any) -> local.Process:
        counted["tasks"] += argv[0] == sys.executable
        return start(argv, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "start_process", start_and_count)
        yield
