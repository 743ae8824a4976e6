"""The sides of experiments on tensors: a ps and a worker that move them, and raw TCP beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError
from tensorwire.lab import Task
from tensorwire.lab.channel import Message
from tensorwire.measure.contenders import Contender
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.tasks import (
    REQUEST_TIMEOUT_S,
    TaskProcesses,
    Watcher,
    answer,
    ask,
    task_argv,
    wait_started,
)

_SLOWEST_MB_PER_S = 20.0


_SLOWEST_STEP_S = 1.0


@dataclass(frozen=True)
class Tensors:
    """What one step moves: `count` vectors of `floats` float32 each."""

    name: str
    count: int
    floats: int

    @property
    def data_mb(self) -> float:
        """MB (10^6 bytes) of a step."""
        return self.count * self.floats * 4 / 1e6


def request_timeout_s(tensors: Tensors, iters: int) -> float:
    """A deadline that only a task which hangs misses, for `iters` steps."""
    return REQUEST_TIMEOUT_S + iters * (_SLOWEST_STEP_S + tensors.data_mb / _SLOWEST_MB_PER_S)


@dataclass(frozen=True)
class Block:
    """Steps that one side ran without another's in between."""

    step_s: list[float]
    cpu_s: float


class Side(TaskProcesses):
    """A ps, a worker and perhaps more."""

    def __init__(
        self, contender: Contender, modules: Mapping[str, str], host_pool: HostPool = THIS_MACHINE
    ) -> None:
        """`modules`: of each job the module of this package that its one task is."""
        super().__init__(host_pool.cluster(dict.fromkeys(modules, 1)))
        self.name = contender.name
        self.protocol = contender.protocol
        self._setting = contender.setting
        self._modules = modules
        self._tasks: dict[str, Task] = {}
        self.tensorflow = ""

    def _start(self) -> None:
        for job, module in self._modules.items():
            task = self._cluster.start(
                job, 0, task_argv(module), env=self._setting.task_environment(), channel=True
            )
            setup = {
                "protocol": self.protocol,
                "spec": self._cluster.spec,
                "job": job,
                "index": 0,
                "tensor_fuse": self._setting.tensor_fuse,
            }
            task.channel.send(setup)
            self._tasks[job] = task

    def wait_started(self, watcher: Watcher) -> None:
        """Returns when every task runs. Start all sides first: they start side by side."""
        for task in self._tasks.values():
            self.tensorflow = wait_started(self._cluster, task, watcher)

    def address(self, job: str) -> str:
        """Where the job's task is on gRPC."""
        return self._tasks[job].address

    def resident_bytes(self) -> dict[str, int]:
        """Memory of each task that is resident now, by the task's name."""
        return {
            task.name: int(psutil.Process(task.pid).memory_info().rss)
            for task in self._tasks.values()
        }

    def _ask(self, job: str, message: Message, timeout_s: float = REQUEST_TIMEOUT_S) -> Message:
        return ask(self._cluster, self._tasks[job], message, timeout_s)


class TensorSide(Side):
    """One ps and one worker that move tensors."""

    def __init__(self, contender: Contender, host_pool: HostPool = THIS_MACHINE) -> None:
        super().__init__(contender, dict.fromkeys(("ps", "worker"), "bench.tensor_task"), host_pool)
        self._steps = 0

    def build(self, tensors: Tensors) -> None:
        """Makes the variables and the op of `tensors`."""
        self._ask(
            "worker",
            {
                "do": "build",
                "case": tensors.name,
                "tensors": tensors.count,
                "floats": tensors.floats,
            },
            request_timeout_s(tensors, 4),
        )

    def block(self, tensors: Tensors, iters: int, warm_up: int = 1) -> Block:
        """Runs `warm_up` steps that do not count, then `iters` that do."""
        self._steps += warm_up + iters
        timeout_s = request_timeout_s(tensors, max(iters, warm_up))
        run = {"do": "run", "case": tensors.name}
        self._ask("worker", {**run, "iters": warm_up}, timeout_s)
        ps_cpu_s = self._ask("ps", {"do": "cpu"})["cpu_s"]
        ps_host = self._cluster.host("ps", 0)
        before_bytes = ps_host.received_bytes()
        measured = self._ask("worker", {**run, "iters": iters}, timeout_s)
        after_bytes = ps_host.received_bytes()
        if (
            before_bytes is not None
            and after_bytes is not None
            and after_bytes - before_bytes < iters * tensors.data_mb * 1e6
        ):
            raise TensorwireError(f"{self.name} did not use the link: its figures mean nothing")
        ps_cpu_s = self._ask("ps", {"do": "cpu"})["cpu_s"] - ps_cpu_s
        return Block(measured["step_s"], measured["cpu_s"] + ps_cpu_s)

    def verify(self, tensors: Tensors) -> None:
        """Raises TensorwireError unless the ps holds what the worker sent, by this protocol."""
        reply = self._ask(
            "worker", {"do": "verify", "case": tensors.name}, request_timeout_s(tensors, 4)
        )
        if not reply["equal"]:
            raise TensorwireError(
                f"the ps does not hold what the worker sent over {self.protocol}: "
                "its figures mean nothing"
            )
        # A tensor that took another way would make these the figures of that way.
        arrived = self.arrived_tensors()
        if self.protocol == "grpc++" and arrived < self._steps:
            raise TensorwireError(
                f"only {arrived} tensors of {self._steps} steps came over grpc++: "
                "its figures mean nothing"
            )

    def arrived_tensors(self) -> int:
        """Tensors that came to the ps over grpc++ so far."""
        wire = self._ask("ps", {"do": "wire"})
        return int(wire.get("recv_tensors", 0)) + int(wire.get("pushed_tensors", 0))


class CeilingSide(TaskProcesses):
    """One raw TCP stream between two processes, and memcpy in one of them."""

    def __init__(self, size_bytes: int, host_pool: HostPool = THIS_MACHINE) -> None:
        super().__init__(host_pool.cluster({"receiver": 1, "sender": 1}))
        self._size_bytes = size_bytes
        self._tasks: list[Task] = []

    def _start(self) -> None:
        for job in ("receiver", "sender"):
            task = self._cluster.start(job, 0, task_argv("bench.raw_task"), channel=True)
            task.channel.send({"part": "tcp", "message_size": self._size_bytes})
            self._tasks.append(task)

    def wait_started(self) -> None:
        """Returns when the stream stands and both have touched their buffers."""
        for task in self._tasks:
            answer(self._cluster, task, REQUEST_TIMEOUT_S)
        receiver, sender = self._tasks
        # On another machine the address at which it is known may not be one of its own.
        at, port = split_address(receiver.address)
        listens_at = at if self._cluster.is_on_this_machine else ""
        ask(self._cluster, receiver, {"do": "receive", "host": listens_at, "port": port})
        ask(self._cluster, sender, {"do": "connect", "host": at, "port": port, "streams": 1})

    def block(self, kind: str, iters: int, warm_up: int = 1) -> list[float]:
        """Seconds of each of `iters` steps of `kind`, "tcp" or "memcpy"."""
        sender = self._tasks[1]
        for count in (warm_up, iters):
            reply = ask(self._cluster, sender, {"do": kind, "iters": count})
        times: list[float] = reply["step_s"]
        return times
