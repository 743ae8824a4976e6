"""Tasks of an experiment: what runs in their processes, and how these are started and asked.

A `HostedTask` runs in a process of its own (`task_host`). Its starter sends requests by name.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import psutil

from tensorwire.bench.lab import LocalCluster
from tensorwire.bench.lab import TaskProcess as Process
from tensorwire.bench.lab.channel import ChannelClosed, Message
from tensorwire.owning_context import OwningContext

Method = TypeVar("Method", bound=Callable[..., Any])

# The first task may have to compile the plug-in.
_START_TIMEOUT_S = 600.0
_OUR_LINES = "tensorwire: "
REQUEST_TIMEOUT_S = 120.0
_SLOWEST_REQUESTS_PER_S = 100.0
_SLOWEST_STEP_S = 1.0
_SLOWEST_BYTES_PER_S = 20e6


def patience_s(*, requests: int = 0, steps: int = 0, moved_bytes: float = 0.0) -> float:
    """A timeout for an amount of work that only a hanging task exceeds."""
    return (
        REQUEST_TIMEOUT_S
        + requests / _SLOWEST_REQUESTS_PER_S
        + steps * _SLOWEST_STEP_S
        + moved_bytes / _SLOWEST_BYTES_PER_S
    )


def request(method: Method) -> Method:
    """Marks a method of a HostedTask that its starter may call."""
    method.is_request = True  # type: ignore[attr-defined]
    return method


class HostedTask:
    """A task process that answers requests of the process that started it.

    The constructor gets the fields of the first message. A request is a method marked with
    `request`. It gets the fields of its message, checked against its annotations, and returns one
    answer or yields several.
    """

    def ready(self) -> Message:
        """The answer to the first message."""
        return {}

    @request
    def cpu(self) -> Message:
        """CPU seconds and threads of this process."""
        return {"cpu_s": time.process_time(), "threads": psutil.Process().num_threads()}


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


class TaskProcesses(OwningContext):
    """Tasks of a cluster. A context manager that ends all of them.

    A task is named as in "worker:1"; the name of a job stands for its first task.
    """

    tensorflow: str | None = None
    """The tasks' version of TensorFlow, if they use it; set when they have started."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.processes: dict[str, Process] = {}
        self.ready: dict[str, Message] = {}
        """What each task said when it had started."""

    def start(self) -> None:
        """Starts the tasks; overridden by subclasses."""

    def start_task(
        self, task: str, kind: type[HostedTask], env: Mapping[str, str] | None = None, **setup: Any
    ) -> None:
        """Starts a task without waiting for it. `setup`: its constructor's arguments.

        Raises:
            TensorwireError: the process cannot be started, or ended at once.
        """
        job, _, index = task.partition(":")
        argv = host_argv(f"{kind.__module__}:{kind.__qualname__}")
        process = self.cluster.start(job, int(index or 0), argv, env=env, channel=True)
        self.processes[process.name] = process
        self.send(process.name, setup)

    def _open(self, held: contextlib.ExitStack) -> None:
        held.enter_context(self.cluster)
        self.start()

    def wait_started(self, watcher: Watcher) -> None:
        """Waits until all tasks have started."""
        for name in self.processes:
            self.wait_ready(name, watcher)

    def wait_ready(self, task: str, watcher: Watcher) -> None:
        """Waits for a started task and its first message.

        The first use of a protocol may compile for minutes. The task's log lines about this are
        passed to `watcher`.
        """
        process = self.process(task)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not process.channel.wait(1.0) and time.monotonic() < deadline:
            said = [line for line in process.tail().splitlines() if line.startswith(_OUR_LINES)]
            if said:
                watcher.activity(said[-1].removeprefix(_OUR_LINES))
        self.ready[process.name] = self.answer(task, 1.0)
        self.tensorflow = self.ready[process.name].get("tensorflow")

    def send(self, task: str, message: Message) -> None:
        """Sends a message to a task. An error contains the end of the task's log."""
        try:
            self.process(task).channel.send(message)
        except ChannelClosed:
            raise self.cluster.error_of(self.process(task)) from None

    def answer(self, task: str, timeout_s: float) -> Message:
        """The task's next message. An error contains the end of the task's log."""
        try:
            return self.process(task).channel.receive(timeout_s)
        except ChannelClosed:
            raise self.cluster.error_of(self.process(task)) from None

    def ask(
        self, task: str, do: str, timeout_s: float = REQUEST_TIMEOUT_S, **arguments: Any
    ) -> Message:
        """The task's answer to a request."""
        return self.ask_all([task], do, timeout_s, **arguments)[0]

    def ask_all(
        self, tasks: Sequence[str], do: str, timeout_s: float = REQUEST_TIMEOUT_S, **arguments: Any
    ) -> list[Message]:
        """The answers of tasks that do the same at the same time.

        Watches all tasks of the cluster, because a worker waits for a lost ps.
        """
        for task in tasks:
            self.send(task, {"do": do, **arguments})
        deadline = time.monotonic() + timeout_s
        answers = []
        for task in tasks:
            while not self.process(task).channel.wait(1.0):
                self.cluster.check()
                if time.monotonic() > deadline:
                    raise self.cluster.error_of(self.process(task))
            left_s = max(1.0, deadline - time.monotonic())  # a long answer comes in parts
            answers.append(self.answer(task, left_s))
        return answers

    def process(self, task: str) -> Process:
        return self.processes[task if ":" in task else f"{task}:0"]

    def address(self, task: str) -> str:
        """The address reserved for the task's server."""
        return self.process(task).address
