"""A cluster of one protocol with its chief, and what happens to its servers."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import processes
from harness.survival import Holdings
from integration.semantics.support import TensorFlowCluster, hear, task_environment
from tensorwire.bench.lab import TaskProcess
from tensorwire.bench.lab.channel import Message
from tensorwire.errors import TensorwireError
from tensorwire.owning_context import OwningContext

from .program import CPUS, JOBS, PATIENCE, SERVERS, Program

ANSWER_S = 150.0 * PATIENCE
"""Timeout of a program; even on a busy machine, a longer one hangs."""
RECOVERY_S = 90.0 * PATIENCE
_STACKS_S = 30.0
_FRAMES = 9


class Hang(TensorwireError):
    """There was no answer in time. The message has the stacks of the tasks' threads."""


class Side(OwningContext):
    """A cluster of one protocol. A context manager that ends all processes."""

    def __init__(self, protocol: str, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables for all its tasks."""
        self.protocol = protocol
        self._environment = dict(environment or {})
        self._cluster = TensorFlowCluster(protocol, JOBS, cpus=CPUS)
        self._chief: TaskProcess | None = None
        self._numbers = iter(range(1_000_000))

    def _open(self, held: contextlib.ExitStack) -> None:
        held.enter_context(self._cluster)
        held.callback(self._thaw)
        for name in SERVERS:
            self._begin(name)
        self._chief = self._cluster.local.start(
            "chief",
            0,
            [sys.executable, "-m", "differential.client"],
            env=task_environment({"PYTHONPATH": _search_path(), **self._environment}),
            channel=True,
        )

    def connect(self) -> None:
        """Waits until all tasks serve and the chief knows them."""
        assert self._chief is not None
        self._cluster.ready(*self._cluster.tasks.values())
        self._chief.channel.send(
            {
                "spec": dict(self._cluster.spec),
                "protocol": self.protocol,
                "plugin": self._cluster.plugin,
            }
        )
        hear(self._chief)

    def _begin(self, name: str) -> TaskProcess:
        job, _, index = name.partition(":")
        return self._cluster.begin(job, int(index), self._environment)

    def _thaw(self) -> None:
        for task in self._cluster.tasks.values():
            task.signal(signal.SIGCONT)

    def ask(self, message: Message, timeout_s: float = ANSWER_S) -> Message:
        """Sends a message to the chief. Raises Hang, also if the chief has ended."""
        assert self._chief is not None
        try:
            self._chief.channel.send(message)
            return self._chief.channel.receive(timeout_s)
        except TensorwireError as error:
            stacks = self._stacks() if self._chief.poll() is None else self._chief.tail(30)
            raise Hang(f"{self.protocol}: {error}\n{stacks}") from None

    def outcomes(self, program: Program) -> list[Any]:
        """The outcome of each act. Raises Hang."""
        tag = f"program-{next(self._numbers)}"  # names of containers must not contain "_"
        found: list[Any] = self.ask({"run": program.to_json(), "tag": tag})["outcomes"]
        return found

    def kill(self, name: str) -> None:
        self._cluster.tasks[name].stop(signal.SIGKILL)

    def begin(self, name: str) -> None:
        """Starts a server that replaces a killed one, and waits until it serves."""
        self._cluster.ready(self._begin(name))

    def frozen(self, name: str) -> Any:
        return processes.frozen(self._cluster.tasks[name])

    def holdings(self) -> dict[str, Holdings]:
        """The holdings of each server and of the chief, without free memory of the allocator."""
        assert self._chief is not None
        for task in self._cluster.tasks.values():
            task.channel.request({"ask": "trim"}, ANSWER_S)
        self.ask({"trim": True})
        pids = {name: task.pid for name, task in self._cluster.tasks.items()}
        return {
            name: Holdings.of(pid) for name, pid in {**pids, "chief:0": self._chief.pid}.items()
        }

    def stats(self) -> dict[str, dict[str, Any]]:
        """The plug-in's metrics of each task; empty on gRPC."""
        if not self._cluster.plugin:
            return {}
        found: dict[str, dict[str, Any]] = {
            name: dict(self._cluster.stats(name)) for name in self._cluster.tasks
        }
        found["chief:0"] = self.ask({"stats": True})["stats"]
        return found

    def _stacks(self) -> str:
        """Stacks of all threads without duplicates, if a debugger is installed."""
        assert self._chief is not None
        self._chief.signal(signal.SIGUSR1)  # writes its Python stacks to its log
        tasks = {**self._cluster.tasks, "chief:0": self._chief}
        return "\n".join(
            f"--- {name}:\n{_stacks_of(task.pid)}\n{task.tail(40)}" for name, task in tasks.items()
        )


def _stacks_of(pid: int) -> str:
    if (gdb := shutil.which("gdb")) is None:
        return "no gdb here"
    command = [gdb, "-p", str(pid), "-batch", "-ex", "set print frame-arguments none"]
    command += ["-ex", f"thread apply all bt {_FRAMES}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_STACKS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "gdb takes too long"
    places: dict[str, int] = {}
    for thread in done.stdout.split("\nThread ")[1:]:
        frames = [
            line.split(" in ", 1)[-1].split("(")[0].strip()[:100]
            for line in thread.splitlines()
            if line.startswith("#")
        ]
        where = " < ".join(frames)
        places[where] = places.get(where, 0) + 1
    return "\n".join(f"  {count} x {where}" for where, count in sorted(places.items()))


def _search_path() -> str:
    """PYTHONPATH for the chief: this process's package, and the folder of the tests."""
    tests = str(Path(__file__).parents[1])
    return ":".join([tests, *(path for path in sys.path if path and path != tests)])
