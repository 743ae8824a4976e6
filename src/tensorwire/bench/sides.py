"""The sides of a comparison: processes that stay for a whole call and take turns.

Each side answers `block(iters)` by the seconds of its steps. Starting them all first and asking
them in turns is what makes a ratio hold on a machine that does something else too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import psutil

from tensorwire.bench.places import HERE, Places
from tensorwire.bench.record import Ratio
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.lab import LocalCluster, Task
from tensorwire.lab.channel import ChannelClosed, Message
from tensorwire.scope import Scope

if TYPE_CHECKING:
    from tensorwire.bench.stats import Rounds

PROTOCOLS = ("grpc", "grpc++")
TRANSPORTS = ("auto", "tcp", "memory")
# The first task may have to compile the plug-in.
_START_TIMEOUT_S = 600.0
_OUR_LINES = "tensorwire: "
_REQUEST_TIMEOUT_S = 120.0
_SLOWEST_MB_PER_S = 20.0
_SLOWEST_STEP_S = 1.0


class Watcher(Protocol):
    """Who wants to know how far a measurement is."""

    def activity(self, text: str) -> None:
        """What happens from now on."""

    def advance(self, count: int = 1) -> None:
        """`count` rounds are done."""


def parse_protocols(text: str) -> tuple[str, ...]:
    """The protocols of "grpc,grpc++", in that order.

    Raises:
        UsageError: one is unknown, named twice, or there is none.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in PROTOCOLS:
            raise UsageError(f"unknown protocol {name!r}: --protocols takes grpc, grpc++ or both")
    if not names:
        raise UsageError("--protocols names no protocol: give grpc, grpc++ or grpc,grpc++")
    if len(set(names)) != len(names):
        raise UsageError(f"--protocols {text} names a protocol twice")
    return names


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


@dataclass(frozen=True)
class Setting:
    """How the tasks of a protocol are set up.

    `transport`, one of TRANSPORTS, reaches the tasks as TENSORWIRE_TRANSPORT, `checksum` as
    TENSORWIRE_CHECKSUM.
    """

    tensor_fuse: bool = False
    transport: str = "auto"
    checksum: bool = False

    def task_environment(self) -> dict[str, str]:
        # Benchmarks of the way between tasks leave accelerators alone.
        return {
            "TENSORWIRE_TRANSPORT": self.transport,
            "TENSORWIRE_CHECKSUM": str(int(self.checksum)),
            "CUDA_VISIBLE_DEVICES": "-1",
        }


@dataclass(frozen=True)
class Contender:
    """A protocol as it takes part in a comparison."""

    protocol: str
    setting: Setting

    @property
    def name(self) -> str:
        """As tables and ratios call it: "grpc++ fused"."""
        return side_name(self.protocol, self.setting.tensor_fuse)


def side_name(protocol: str, tensor_fuse: bool) -> str:
    """What a side of a comparison is called: "grpc", "grpc++ fused"."""
    return f"{protocol} fused" if tensor_fuse else protocol


def contenders(protocols: Sequence[str], setting: Setting) -> tuple[Contender, ...]:
    """Each protocol with its tensors sent singly, which is what a stock TensorFlow does.

    Where `setting` asks for fusion the last one takes part once more, with it.
    """
    single = dataclasses.replace(setting, tensor_fuse=False)
    chosen = [Contender(protocol, single) for protocol in protocols]
    if setting.tensor_fuse:
        chosen.append(Contender(protocols[-1], setting))
    return tuple(chosen)


PAIRS = (
    ("grpc++", "grpc"),
    ("grpc++ fused", "grpc"),
    ("grpc++ fused", "grpc++"),
    ("grpc fused", "grpc"),
    ("grpc++", "grpc fused"),
)
"""Contenders' names, the one that should be faster first, in the order in which they are shown."""


def request_timeout_s(tensors: Tensors, iters: int) -> float:
    """A deadline that only a task which hangs misses, for `iters` steps."""
    return _REQUEST_TIMEOUT_S + iters * (_SLOWEST_STEP_S + tensors.data_mb / _SLOWEST_MB_PER_S)


def task_argv(module: str) -> list[str]:
    """The command line of a task that is a module of this package."""
    return [sys.executable, "-m", f"tensorwire.bench.{module}"]


def answer(cluster: LocalCluster, task: Task, timeout_s: float) -> Message:
    """The task's next message, or an error that has its last words."""
    try:
        return task.channel.receive(timeout_s)
    except ChannelClosed:
        raise cluster.error_of(task) from None


def ask(
    cluster: LocalCluster, task: Task, message: Message, timeout_s: float = _REQUEST_TIMEOUT_S
) -> Message:
    """A request to a task and its answer."""
    try:
        task.channel.send(message)
    except ChannelClosed:
        raise cluster.error_of(task) from None
    return answer(cluster, task, timeout_s)


DEFAULT_SETTING = Setting()


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


@dataclass(frozen=True)
class Block:
    """Steps that one side ran without another's in between."""

    step_s: list[float]
    cpu_s: float


class ClusterProcesses(Scope):
    """Processes that stay for a measurement. A context manager: none of them survives it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @abstractmethod
    def _start(self) -> None:
        """Starts them in the cluster."""

    def _open(self, held: contextlib.ExitStack) -> None:
        held.enter_context(self._cluster)
        self._start()


class Side(ClusterProcesses):
    """A ps, a worker and perhaps more."""

    def __init__(
        self, contender: Contender, modules: Mapping[str, str], places: Places = HERE
    ) -> None:
        """`modules`: of each job the module of this package that its one task is."""
        super().__init__(places.cluster(dict.fromkeys(modules, 1)))
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

    def _ask(self, job: str, message: Message, timeout_s: float = _REQUEST_TIMEOUT_S) -> Message:
        return ask(self._cluster, self._tasks[job], message, timeout_s)


class ProtocolSide(Side):
    """One ps and one worker that move tensors."""

    def __init__(self, contender: Contender, places: Places = HERE) -> None:
        super().__init__(contender, dict.fromkeys(("ps", "worker"), "tensor_task"), places)
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


class CeilingSide(ClusterProcesses):
    """One raw TCP stream between two processes, and memcpy in one of them."""

    def __init__(self, size_bytes: int, places: Places = HERE) -> None:
        super().__init__(places.cluster({"receiver": 1, "sender": 1}))
        self._size_bytes = size_bytes
        self._tasks: list[Task] = []

    def _start(self) -> None:
        for job in ("receiver", "sender"):
            task = self._cluster.start(job, 0, task_argv("raw_task"), channel=True)
            task.channel.send({"part": "tcp", "message_size": self._size_bytes})
            self._tasks.append(task)

    def wait_started(self) -> None:
        """Returns when the stream stands and both have touched their buffers."""
        for task in self._tasks:
            answer(self._cluster, task, _REQUEST_TIMEOUT_S)
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


def compare(rounds: Mapping[str, Rounds], pairs: Sequence[tuple[str, str]]) -> dict[str, Ratio]:
    """ "a/b" for each pair of `pairs` that was measured."""
    from tensorwire.bench.stats import speedup  # and numpy, which no --help waits for

    return {
        f"{first}/{second}": speedup(rounds[first], rounds[second])
        for first, second in pairs
        if first in rounds and second in rounds
    }


def by_side_and_case(
    rounds: Mapping[str, Mapping[str, Rounds]],
) -> dict[str, Rounds]:
    """The rounds of each case and side as those of one: "grpc", or "grpc tiny" of several cases."""
    return {
        name + _case_suffix(case, rounds): of_side
        for case, of_sides in rounds.items()
        for name, of_side in of_sides.items()
    }


def compare_cases(
    rounds: Mapping[str, Mapping[str, Rounds]],
    pairs: Sequence[tuple[str, str]] = PAIRS,
) -> dict[str, Ratio]:
    """`pairs` in each case of `rounds`; the case is in the name where there are several."""
    ratios = {}
    for case, of_sides in rounds.items():
        for name, ratio in compare(of_sides, pairs).items():
            ratios[name + _case_suffix(case, rounds)] = ratio
    return ratios


def _case_suffix(case: str, rounds: Mapping[str, object]) -> str:
    return f" {case}" if len(rounds) > 1 else ""
