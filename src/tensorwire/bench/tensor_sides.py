"""Sides of experiments on tensors: one ps and one worker of each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from tensorwire.bench.server_task import GRPCPP
from tensorwire.bench.tensor_task import TensorTask
from tensorwire.errors import TensorwireError
from tensorwire.lab.channel import Message
from tensorwire.measure.contenders import Contender
from tensorwire.measure.experiment import Side, SomeResult, What
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.task import HostedTask
from tensorwire.measure.tasks import REQUEST_TIMEOUT_S, TaskProcesses, Watcher, wait_started

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


def request_timeout_s(tensors: Tensors, steps: int) -> float:
    """A deadline that only a task which hangs misses, for so many steps."""
    return REQUEST_TIMEOUT_S + steps * (_SLOWEST_STEP_S + tensors.data_mb / _SLOWEST_MB_PER_S)


@dataclass(frozen=True)
class Block:
    """Steps that one side ran without another's in between."""

    step_s: list[float]
    cpu_s: float


class ClusterSide(TaskProcesses, Side[What, SomeResult]):
    """A cluster of one protocol, with one task of each job."""

    def __init__(
        self,
        contender: Contender,
        kinds: Mapping[str, type[HostedTask]],
        host_pool: HostPool = THIS_MACHINE,
    ) -> None:
        """`kinds`: what the task of each job is."""
        super().__init__(host_pool.cluster(dict.fromkeys(kinds, 1)))
        self.name = contender.name
        self.contender = contender
        self.protocol = contender.protocol
        self._kinds = kinds

    def _start(self) -> None:
        for job, kind in self._kinds.items():
            self._start_task(job, kind, self._setup(job), self.contender.setting.task_environment())

    def _setup(self, job: str) -> Message:
        return {
            "spec": self._cluster.spec,
            "job": job,
            "index": 0,
            "protocol": self.protocol,
            "tensor_fuse": self.contender.setting.tensor_fuse,
        }

    def wait_started(self, watcher: Watcher) -> None:
        for process in self._processes.values():
            self.tensorflow = wait_started(self._cluster, process, watcher)

    def resident_bytes(self) -> dict[str, int]:
        """Memory of each task that is resident now, by the task's name."""
        return {
            process.name: int(psutil.Process(process.pid).memory_info().rss)
            for process in self._processes.values()
        }


class TensorSide(ClusterSide[Tensors, SomeResult]):
    """One ps and one worker that move tensors."""

    first_warm_up_steps = 2
    """Before the first block of a case."""
    warm_up_steps = 1
    """Before each block."""

    def __init__(self, contender: Contender, host_pool: HostPool = THIS_MACHINE) -> None:
        super().__init__(contender, dict.fromkeys(("ps", "worker"), TensorTask), host_pool)
        self._steps = 0
        self._cpu_s: dict[Tensors, float] = {}

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

    def warm_up(self, tensors: Tensors) -> None:
        self.build(tensors)
        self.run(tensors, 1, self.first_warm_up_steps)

    def block(self, tensors: Tensors, steps: int | None) -> list[float]:
        block = self.run(tensors, steps or 1, self.warm_up_steps)
        self._cpu_s[tensors] = self._cpu_s.get(tensors, 0.0) + block.cpu_s
        return block.step_s

    def run(self, tensors: Tensors, steps: int, warm_up: int = 1) -> Block:
        """Runs `warm_up` steps that do not count, then `steps` that do."""
        self._steps += warm_up + steps
        timeout_s = request_timeout_s(tensors, max(steps, warm_up))
        run = {"do": "run", "case": tensors.name}
        self._ask("worker", {**run, "iters": warm_up}, timeout_s)
        ps_cpu_s = self._ask("ps", {"do": "cpu"})["cpu_s"]
        ps_host = self._cluster.host("ps", 0)
        before_bytes = ps_host.received_bytes()
        measured = self._ask("worker", {**run, "iters": steps}, timeout_s)
        after_bytes = ps_host.received_bytes()
        if (
            before_bytes is not None
            and after_bytes is not None
            and after_bytes - before_bytes < steps * tensors.data_mb * 1e6
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
        if self.protocol == GRPCPP and arrived < self._steps:
            raise TensorwireError(
                f"only {arrived} tensors of {self._steps} steps came over grpc++: "
                "its figures mean nothing"
            )

    def arrived_tensors(self) -> int:
        """Tensors that came to the ps over grpc++ so far."""
        wire = self._ask("ps", {"do": "wire"})
        return int(wire.get("recv_tensors", 0)) + int(wire.get("pushed_tensors", 0))
