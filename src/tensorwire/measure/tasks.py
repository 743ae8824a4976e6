"""Tasks that stay for a measurement, and the questions that they are asked."""

from __future__ import annotations

import contextlib
import sys
import time
from abc import abstractmethod
from typing import Protocol

from tensorwire.lab import LocalCluster, Task
from tensorwire.lab.channel import ChannelClosed, Message
from tensorwire.scope import Scope

# The first task may have to compile the plug-in.
_START_TIMEOUT_S = 600.0


_OUR_LINES = "tensorwire: "


REQUEST_TIMEOUT_S = 120.0


class Watcher(Protocol):
    """Who wants to know how far a measurement is."""

    def activity(self, text: str) -> None:
        """What happens from now on."""

    def advance(self, count: int = 1) -> None:
        """`count` rounds are done."""


def task_argv(module: str) -> list[str]:
    """The command line of a task that is a module of this package."""
    return [sys.executable, "-m", f"tensorwire.{module}"]


def answer(cluster: LocalCluster, task: Task, timeout_s: float) -> Message:
    """The task's next message, or an error that has its last words."""
    try:
        return task.channel.receive(timeout_s)
    except ChannelClosed:
        raise cluster.error_of(task) from None


def ask(
    cluster: LocalCluster, task: Task, message: Message, timeout_s: float = REQUEST_TIMEOUT_S
) -> Message:
    """A request to a task and its answer."""
    try:
        task.channel.send(message)
    except ChannelClosed:
        raise cluster.error_of(task) from None
    return answer(cluster, task, timeout_s)


def wait_started(cluster: LocalCluster, task: Task, watcher: Watcher) -> str:
    """Waits for a task that got its setup; returns its version of TensorFlow."""
    version: str = wait_ready(cluster, task, watcher)["tensorflow"]
    return version


def wait_ready(cluster: LocalCluster, task: Task, watcher: Watcher) -> Message:
    """Waits for a task that got its setup; returns what it says first.

    The first use of a protocol compiles something, perhaps for minutes: what the task says of it in
    its log is passed on.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not task.channel.wait(1.0) and time.monotonic() < deadline:
        said = [line for line in task.tail().splitlines() if line.startswith(_OUR_LINES)]
        if said:
            watcher.activity(said[-1].removeprefix(_OUR_LINES))
    return answer(cluster, task, 1.0)


class TaskProcesses(Scope):
    """Processes that stay for a measurement. A context manager: none of them survives it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @abstractmethod
    def _start(self) -> None:
        """Starts them in the cluster."""

    def _open(self, held: contextlib.ExitStack) -> None:
        held.enter_context(self._cluster)
        self._start()
