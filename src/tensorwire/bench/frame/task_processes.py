"""Starts tasks for the duration of a measurement, and sends requests to them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import Protocol

from tensorwire.bench.frame.hosted_task import HostedTask
from tensorwire.bench.lab import LocalCluster
from tensorwire.bench.lab import TaskProcess as Process
from tensorwire.bench.lab.channel import ChannelClosed, Message
from tensorwire.owning_context import OwningContext

# The first task may have to compile the plug-in.
_START_TIMEOUT_S = 600.0
_OUR_LINES = "tensorwire: "
REQUEST_TIMEOUT_S = 120.0


class Watcher(Protocol):
    """Receives the progress of a measurement."""

    def activity(self, text: str) -> None:
        """Shows the activity that begins now."""

    def advance(self, count: int = 1) -> None:
        """Reports that `count` more rounds are done."""


class Unwatched:
    """A Watcher that shows nothing."""

    def activity(self, text: str) -> None:
        pass

    def advance(self, count: int = 1) -> None:
        pass


def host_argv(name: str) -> list[str]:
    """The command line of the task host for a task "MODULE:CLASS"."""
    return [sys.executable, "-m", "tensorwire.bench.frame.task_host", name]


def task_argv(kind: type[HostedTask]) -> list[str]:
    """The command line of a task."""
    return host_argv(f"{kind.__module__}:{kind.__qualname__}")


def start_task(
    cluster: LocalCluster,
    job: str,
    index: int,
    kind: type[HostedTask],
    setup: Message,
    env: Mapping[str, str] | None = None,
) -> Process:
    """Starts a task in a cluster without waiting for it. `setup`: the constructor's arguments.

    Raises:
        TensorwireError: the process cannot be started, or ended at once.
    """
    process = cluster.start(job, index, task_argv(kind), env=env, channel=True)
    send(cluster, process, setup)
    return process


def send(cluster: LocalCluster, process: Process, message: Message) -> None:
    """Sends a message to a task. An error contains the end of the task's log."""
    try:
        process.channel.send(message)
    except ChannelClosed:
        raise cluster.error_of(process) from None


def answer(cluster: LocalCluster, process: Process, timeout_s: float) -> Message:
    """The task's next message. An error contains the end of the task's log."""
    try:
        return process.channel.receive(timeout_s)
    except ChannelClosed:
        raise cluster.error_of(process) from None


def ask(
    cluster: LocalCluster, process: Process, message: Message, timeout_s: float = REQUEST_TIMEOUT_S
) -> Message:
    """Sends a request to a task and returns the answer."""
    send(cluster, process, message)
    return answer(cluster, process, timeout_s)


def wait_started(cluster: LocalCluster, process: Process, watcher: Watcher) -> str:
    """Waits for a task with TensorFlow; returns the version of TensorFlow."""
    version: str = wait_ready(cluster, process, watcher)["tensorflow"]
    return version


def wait_ready(cluster: LocalCluster, process: Process, watcher: Watcher) -> Message:
    """Waits for a started task; returns its first message.

    The first use of a protocol may compile for minutes. The task's log lines about this are passed
    to `watcher`.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not process.channel.wait(1.0) and time.monotonic() < deadline:
        said = [line for line in process.tail().splitlines() if line.startswith(_OUR_LINES)]
        if said:
            watcher.activity(said[-1].removeprefix(_OUR_LINES))
    return answer(cluster, process, 1.0)


class TaskProcesses(OwningContext):
    """Tasks of a cluster, one per job. A context manager that ends all of them."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._processes: dict[str, Process] = {}

    def _start(self) -> None:
        """Starts the tasks; overridden by subclasses."""

    def _start_task(
        self, job: str, kind: type[HostedTask], setup: Message, env: Mapping[str, str] | None = None
    ) -> None:
        self._processes[job] = start_task(self._cluster, job, 0, kind, setup, env)

    def _open(self, held: contextlib.ExitStack) -> None:
        held.enter_context(self._cluster)
        self._start()

    def _ask(self, job: str, message: Message, timeout_s: float = REQUEST_TIMEOUT_S) -> Message:
        return ask(self._cluster, self._processes[job], message, timeout_s)

    def address(self, job: str) -> str:
        """The address reserved for the server of the job's task."""
        return self._processes[job].address
