"""Sides of experiments on tensors: one ps and one worker of each protocol, and their tasks."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from tensorwire.bench.experiments.server_task import GRPCPP, ServerTask
from tensorwire.bench.frame.comparison import transport_of
from tensorwire.bench.frame.contenders import Contender
from tensorwire.bench.frame.experiment import Side, SomeResult, What
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.hosted_task import HostedTask, request, used_cpu_s
from tensorwire.bench.frame.task_processes import (
    REQUEST_TIMEOUT_S,
    TaskProcesses,
    Watcher,
    wait_started,
)
from tensorwire.bench.lab.channel import Message
from tensorwire.errors import TensorwireError


class TensorTask(ServerTask):
    """A server, and the graphs that were built on it."""

    def __init__(
        self,
        spec: Mapping[str, Sequence[str]],
        job: str,
        index: int,
        protocol: str,
        rewrites: Sequence[str],
    ) -> None:
        """Starts the server; see ServerTask."""
        super().__init__(spec, job, index, protocol, rewrites)
        self._cases: dict[str, tuple[Any, Any, Any]] = {}

    @request
    def build(self, case: str, tensors: int, floats: int) -> Message:
        """Makes a session, and an op that assigns `tensors` vectors of `floats` float32 each."""
        v1 = self._tf.compat.v1
        # Use the CPU, because on an accelerator the copy to host memory would be measured, too.
        ps, worker = "/job:ps/task:0/device:CPU:0", f"{self._device}/device:CPU:0"
        with self._tf.Graph().as_default() as graph:
            assigns: list[Any] = []
            sums: dict[str, list[Any]] = {ps: [], worker: []}
            for index in range(tensors):
                variables = {}
                for device in (ps, worker):
                    with self._tf.device(device):
                        variables[device] = v1.get_variable(
                            f"{case}_{'ps' if device == ps else 'worker'}_{index}",
                            initializer=_random(self._tf, floats)
                            if device == worker
                            else self._tf.zeros([floats]),
                            use_resource=True,
                        )
                        # A sum of the bits that wraps around: nearly always different for different
                        # tensors.
                        bits = self._tf.bitcast(variables[device].read_value(), self._tf.int32)
                        sums[device].append(self._tf.reduce_sum(bits))
                with self._tf.device(ps):
                    assigns.append(variables[ps].assign(variables[worker], read_value=False))
            with self._tf.device(ps):
                op = assigns[0] if tensors == 1 else self._tf.group(*assigns)
            totals = []
            for device, parts in sums.items():
                with self._tf.device(device):
                    totals.append(self._tf.stack(parts))
            session = v1.Session(self.target, graph=graph, config=self._session_config())
            session.run(v1.global_variables_initializer())
        self._cases[case] = (session, op, totals)
        return {}

    @request
    def run(self, case: str, iters: int) -> Message:
        """Runs `iters` steps; returns the seconds of each, and the CPU seconds of this process."""
        session, op, _ = self._cases[case]
        times = []
        gc.disable()
        cpu = used_cpu_s()
        try:
            for _ in range(iters):
                begin = time.perf_counter()
                session.run(op)
                times.append(time.perf_counter() - begin)
        finally:
            cpu = used_cpu_s() - cpu
            gc.enable()
        return {"step_s": times, "cpu_s": cpu}

    @request
    def verify(self, case: str) -> Message:
        """Checks that the ps now has the worker's values."""
        session, _, totals = self._cases[case]
        on_ps, on_worker = session.run(totals)
        return {"equal": bool((on_ps == on_worker).all())}


def _random(tf: Any, floats: int) -> Any:
    """Random values, drawn at initialization, so that the graph holds no large constant."""
    return tf.random.uniform([floats], minval=-1.0, maxval=1.0)


_SLOWEST_MB_PER_S = 20.0
_SLOWEST_STEP_S = 1.0


@dataclass(frozen=True)
class Tensors:
    """The tensors that one step moves: `count` vectors of `floats` float32 each."""

    name: str
    count: int
    floats: int

    @property
    def data_mb(self) -> float:
        """MB (10^6 bytes) of a step."""
        return self.count * self.floats * 4 / 1e6

    @property
    def build_request(self) -> Message:
        """The message that makes a TensorTask build these tensors."""
        return {
            "do": "build",
            "case": self.name,
            "tensors": self.count,
            "floats": self.floats,
        }


def request_timeout_s(tensors: Tensors, steps: int) -> float:
    """A timeout for `steps` steps that only a hanging task exceeds."""
    return REQUEST_TIMEOUT_S + steps * (_SLOWEST_STEP_S + tensors.data_mb / _SLOWEST_MB_PER_S)


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one side, without steps of other sides in between."""

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
        """`kinds`: the class of each job's task."""
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
            "rewrites": self.contender.setting.rewrites,
        }

    def wait_started(self, watcher: Watcher) -> None:
        for process in self._processes.values():
            self.tensorflow = wait_started(self._cluster, process, watcher)

    def transport(self) -> str:
        return transport_of(self._ask(job, {"do": "wire"}) for job in self._kinds)

    def resident_bytes(self) -> dict[str, int]:
        """Current resident memory of each task, by the task's name."""
        return {
            process.name: int(psutil.Process(process.pid).memory_info().rss)
            for process in self._processes.values()
        }


class TensorSide(ClusterSide[Tensors, SomeResult]):
    """One ps and one worker that move tensors."""

    first_warm_up_steps = 2
    """Number of steps before the first block of a case."""
    warm_up_steps = 1
    """Number of steps before each block."""

    def __init__(self, contender: Contender, host_pool: HostPool = THIS_MACHINE) -> None:
        super().__init__(contender, dict.fromkeys(("ps", "worker"), TensorTask), host_pool)
        self._steps = 0
        self._cpu_s: dict[Tensors, float] = {}

    def build(self, tensors: Tensors) -> None:
        """Makes the variables and the op of `tensors`."""
        self._ask("worker", tensors.build_request, request_timeout_s(tensors, 4))

    def warm_up(self, tensors: Tensors) -> None:
        self.build(tensors)
        self.run(tensors, 1, self.first_warm_up_steps)

    def block(self, tensors: Tensors, steps: int | None) -> list[float]:
        block = self.run(tensors, steps or 1, self.warm_up_steps)
        self._cpu_s[tensors] = self._cpu_s.get(tensors, 0.0) + block.cpu_s
        return block.step_s

    def run(self, tensors: Tensors, steps: int, warm_up: int = 1) -> Block:
        """Runs `warm_up` steps that do not count, and then `steps` measured steps."""
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
            raise TensorwireError(f"{self.name} did not use the link: its results are invalid")
        ps_cpu_s = self._ask("ps", {"do": "cpu"})["cpu_s"] - ps_cpu_s
        return Block(measured["step_s"], measured["cpu_s"] + ps_cpu_s)

    def verify(self, tensors: Tensors) -> None:
        """Raises TensorwireError unless the ps has the worker's values, sent over this protocol."""
        reply = self._ask(
            "worker", {"do": "verify", "case": tensors.name}, request_timeout_s(tensors, 4)
        )
        if not reply["equal"]:
            raise TensorwireError(
                f"the ps does not have the values that the worker sent over {self.protocol}: "
                "its results are invalid"
            )
        # The results would be invalid if the tensors used another path.
        arrived = self.arrived_tensors()
        if self.protocol == GRPCPP and arrived < self._steps:
            raise TensorwireError(
                f"only {arrived} tensors of {self._steps} steps arrived over grpc++: "
                "its results are invalid"
            )

    def arrived_tensors(self) -> int:
        """Tensors that the ps has received over grpc++ so far."""
        wire = self._ask("ps", {"do": "wire"})
        return int(wire.get("recv_tensors", 0)) + int(wire.get("pushed_tensors", 0))
