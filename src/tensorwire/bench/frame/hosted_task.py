"""The interface of an experiment's task; it runs in the process of `task_host`."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tensorwire.bench.lab.channel import Message

Method = TypeVar("Method", bound=Callable[..., Any])


class HostedTask:
    """A task process that answers requests of the process that started it.

    The constructor gets the fields of the first message. A request is a method marked with
    `request`. It gets the fields of its message, checked against its annotations, and returns one
    answer or yields several.
    """

    def ready(self) -> Message:
        """The answer to the first message."""
        return {}


def request(method: Method) -> Method:
    """Marks a method of a HostedTask that its starter may call."""
    method.is_request = True  # type: ignore[attr-defined]
    return method


def used_cpu_s() -> float:
    """CPU seconds of every thread of this process, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def thread_count() -> int:
    """Number of threads of this process, including those of native code."""
    return len(list(Path("/proc/self/task").iterdir()))
