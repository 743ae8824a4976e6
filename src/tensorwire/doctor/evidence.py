"""The input of the doctor: plain records. Each is optional and names the source of its figures.

Sizes are in bytes, rates in MB/s of 10^6 bytes, times in seconds. Task names are short: "ps:0".
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tensorwire.cluster import WORKER_JOBS, is_ps
from tensorwire.machine import Machine
from tensorwire.units import percent


@dataclass(frozen=True)
class MeasuredLayer:
    """One measured layer of the path between two hosts."""

    name: str
    """"link" (its nominal speed), "tcp", "rpc" or "tensor"."""
    protocol: str | None
    """"grpc" or "grpc++"; None below RPC."""
    mb_per_s: float | None
    latency_us: float | None = None
    """Latency of a small request with its reply."""


@dataclass(frozen=True)
class Layers:
    """All measured layers, from the link up to tensors, between the hosts given to the doctor."""

    source: str
    measured: tuple[MeasuredLayer, ...]

    def mb_per_s(self, name: str, protocol: str | None = None) -> float | None:
        """The rate of a layer, or None where it was not measured."""
        for layer in self.measured:
            if layer.name == name and layer.protocol == protocol:
                return layer.mb_per_s
        return None


@dataclass(frozen=True)
class Split:
    """The parts of a worker's step, in seconds; a mean over the sampled steps."""

    input_s: float | None
    """Waiting for input. None if not measured; it is then part of `compute_s`."""
    compute_s: float
    """Time in which kernels of the worker ran."""
    ps_s: float
    """Waiting for tensors that a ps had not yet computed."""
    wire_s: float
    """Waiting for tensors on the wire."""
    other_s: float
    """The rest: the ps apply updates, and the step starts and ends."""

    @property
    def own_s(self) -> float:
        """Input and compute."""
        return (self.input_s or 0.0) + self.compute_s

    @property
    def step_s(self) -> float:
        return self.own_s + self.ps_s + self.wire_s + self.other_s

    @property
    def words(self) -> str:
        """ "input 3 %, compute 60 %, waiting for ps 20 %, for the wire 10 %, rest 7 % of 12 ms"."""
        own = "compute" if self.input_s is not None else "input and compute"
        parts = [
            *([("input", self.input_s)] if self.input_s is not None else []),
            (own, self.compute_s),
            ("waiting for ps", self.ps_s),
            ("for the wire", self.wire_s),
            ("rest", self.other_s),
        ]
        words = ", ".join(f"{name} {percent(part / self.step_s)}" for name, part in parts)
        return f"{words} of {self.step_s * 1e3:.3g} ms"


def step_sentences(split: Split | None) -> tuple[str, ...]:
    """The sentence about a worker's step; none if its parts are unknown."""
    return () if split is None else (f"A worker's step: {split.words}.",)


@dataclass(frozen=True)
class Flow:
    """The traffic of one tensor from a peer to a task; all tensors without a name are one flow."""

    peer: str
    name: str
    tensors: float
    bytes: float
    not_ready_s: float
    """Seconds of waiting until the peer had computed the tensor."""
    wire_s: float
    """Seconds of waiting for the wire."""


@dataclass(frozen=True)
class Awaited:
    """A tensor that a task waits for."""

    peer: str
    name: str


StallState = Literal["recv", "step", "initialization", "no session", "between steps"]


@dataclass(frozen=True)
class Stall:
    """The state of a worker that completed no step."""

    state: StallState
    """"recv": it waited for `awaited`, and no task waited for it. "step": it is within a step: it
    computes or reads input, or other tasks wait for it. "initialization": it waits until another
    worker has initialized the variables. "no session": it has executed nothing yet. "between
    steps": its session is open and executes nothing.
    """
    awaited: tuple[Awaited, ...] = ()
    """Tensors that it waited for during the whole observation."""
    awaited_from_it: tuple[Awaited, ...] = ()
    """Tensors of this worker that other tasks wait for; `peer` is the waiting task."""
    missing: tuple[str, ...] = ()
    """Tasks that do not answer, so that its session does not begin."""


@dataclass(frozen=True)
class TaskUsage:
    """Metrics of one task over `seconds`."""

    task: str
    host: str
    seconds: float
    cpu_s: float | None
    """CPU time of the process."""
    cores: float | None
    """Cores that the task may use: the smaller of its CPU affinity and its cgroup quota."""
    reactors: int | None = None
    """Communication threads."""
    polling: bool = False
    """True if the task's threads poll and never sleep."""
    tx_bytes: float = 0.0
    """Bytes sent to tasks of other hosts."""
    rx_bytes: float = 0.0
    received: tuple[Flow, ...] = ()
    steps: float | None = None
    """Steps that a worker completed; None for other tasks."""
    split: Split | None = None
    """Parts of a worker's step."""
    stall: Stall | None = None
    """Why a worker completed no step; None if it completed some, or has finished."""

    @property
    def job(self) -> str:
        return self.task.partition(":")[0]

    @property
    def cpu_share(self) -> float | None:
        """Busy share of its cores, without polling threads, which are busy even without work."""
        if self.cpu_s is None or not self.cores or self.seconds <= 0:
            return None
        idle_s = (self.reactors or 0) * self.seconds if self.polling else 0.0
        return max(0.0, self.cpu_s - idle_s) / (self.cores * self.seconds)

    @property
    def step_s(self) -> float | None:
        """Seconds of a worker's step."""
        if self.split is not None:
            return self.split.step_s
        return self.seconds / self.steps if self.steps else None


def cpu_shares(tasks: Sequence[TaskUsage]) -> list[float]:
    """`TaskUsage.cpu_share` of the tasks for which it is known."""
    return [task.cpu_share for task in tasks if task.cpu_share is not None]


def typical_split(workers: Sequence[TaskUsage]) -> Split | None:
    """The median over the workers of each part of the split; None if no worker has a split."""
    splits = [worker.split for worker in workers if worker.split is not None]
    if not splits:
        return None
    inputs = [split.input_s for split in splits if split.input_s is not None]
    return Split(
        input_s=statistics.median(inputs) if inputs else None,
        compute_s=statistics.median(split.compute_s for split in splits),
        ps_s=statistics.median(split.ps_s for split in splits),
        wire_s=statistics.median(split.wire_s for split in splits),
        other_s=statistics.median(split.other_s for split in splits),
    )


@dataclass(frozen=True)
class HostUsage:
    """Metrics of one machine while the job ran."""

    host: str
    cores: float
    """Cores that its tasks may use; for a pod, the pod's limit."""
    cpu_share: float | None
    """Busy share of all cores, by any process."""
    link_mb_per_s: float | None = None
    """The capacity of the host's link in one direction."""


@dataclass(frozen=True)
class JobEvidence:
    """Metrics of a running job."""

    source: str
    protocol: str
    tensor_fuse: bool
    tasks: tuple[TaskUsage, ...]
    hosts: tuple[HostUsage, ...] = ()

    @property
    def ps(self) -> list[TaskUsage]:
        return [task for task in self.tasks if is_ps(task.task)]

    @property
    def workers(self) -> list[TaskUsage]:
        """The tasks that train; a chief is one of them."""
        return [task for task in self.tasks if task.job in WORKER_JOBS]

    @property
    def split(self) -> Split | None:
        """The typical split of its workers."""
        return typical_split(self.workers)

    @property
    def steps(self) -> float:
        """Steps of all workers during the observation."""
        return sum(worker.steps or 0.0 for worker in self.workers)

    @property
    def steps_per_s(self) -> float:
        """Rate of all workers together."""
        return sum((worker.steps or 0.0) / worker.seconds for worker in self.workers)

    @property
    def step_s(self) -> float | None:
        """Median over the workers of the seconds of a step; None if no steps were counted."""
        known = [worker.step_s for worker in self.workers if worker.step_s is not None]
        return statistics.median(known) if known else None

    @property
    def waiting_share(self) -> float | None:
        """Share of a worker's step in which it waits for ps or wire."""
        split = self.split
        return None if split is None else (split.ps_s + split.wire_s) / split.step_s

    @property
    def communicating_share(self) -> float | None:
        """Share of a worker's step that is neither input nor own compute."""
        split = self.split
        return None if split is None else 1 - split.own_s / split.step_s

    @property
    def ps_bytes(self) -> dict[str, float]:
        """Bytes of tensors that each ps exchanged with workers, both directions together."""
        moved = {task.task: 0.0 for task in self.ps}
        for task in self.tasks:
            for flow in task.received:
                for end in {task.task, flow.peer} & moved.keys():
                    moved[end] += flow.bytes
        return moved


@dataclass(frozen=True)
class PlacedPart:
    """A variable, a part of one, or a table that grows, on one ps."""

    variable: str
    ps: int
    bytes: float
    tensors: tuple[str, ...] = ()
    """Names of its tensors on the wire (`Flow.name`); known only for a running job."""
    grows: bool = False
    """It is a table with a row for each key that has occurred, which the script has put there."""


@dataclass(frozen=True)
class Placement:
    """The ps of each variable of the graph."""

    source: str
    ps: int
    parts: tuple[PlacedPart, ...]


@dataclass(frozen=True)
class InputProbe:
    """A measurement of reading the training data, without the job."""

    source: str
    mb_per_s: float
    open_ms: float
    """Median time to the first byte of a file."""
    needed_mb_per_s: float | None = None
    """The rate at which one worker consumes input, or would consume it if it never waited."""


@dataclass(frozen=True)
class Sessions:
    """The device filters of the sessions that the tasks opened."""

    source: str
    without_device_filters: tuple[str, ...]
    """Workers that opened a session without device_filters, if there are several workers."""


@dataclass(frozen=True)
class Run:
    """The speed of a job with a given number of workers, with everything else equal."""

    workers: int
    ps: int
    steps_per_s: float
    """Rate of all workers together."""


@dataclass(frozen=True)
class Scaling:
    """Runs that differ in the number of their workers."""

    source: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Evidence:
    """All evidence. A field is None if that part was not examined."""

    layers: Layers | None = None
    job: JobEvidence | None = None
    placement: Placement | None = None
    input: InputProbe | None = None
    sessions: Sessions | None = None
    scaling: Scaling | None = None
    machine: Machine | None = None
    version: str = ""
    """Version of tensorwire."""
    tensorflow: str = ""

    def with_link(self, mb_per_s: float) -> Evidence:
        """This, with `mb_per_s` as the link capacity of each host whose link is unknown."""
        if self.job is None:
            return self
        hosts = tuple(
            replace(each, link_mb_per_s=each.link_mb_per_s or mb_per_s) for each in self.job.hosts
        )
        return replace(self, job=replace(self.job, hosts=hosts))


Confidence = Literal["high", "medium", "low"]

SMALLEST_COST = 0.05
"""Share of a step. A smaller cost is not worth a change."""


State = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One reason why the job does not scale, or what `tensorwire check` found of one thing."""

    title: str
    cost: float | None
    """Share of a step's time that the change may save; None if no step was observed."""
    evidence: tuple[str, ...]
    """Sentences with their figures."""
    confidence: Confidence
    change: str
    """The one thing to do next; empty if `state` is "ok"."""
    is_risk: bool = False
    """True if it costs nothing until another fault occurs."""
    state: State = "warning"
    """"warning": a job runs, but more slowly or not always."""
    rule: str = ""
    """The name of the rule, or the thing that was checked."""


def checked(state: State, subject: str, text: str, advice: str = "") -> Finding:
    """The finding of a check."""
    return Finding(text, None, (), "high", advice, state=state, rule=subject)


@dataclass(frozen=True)
class Diagnosis:
    """The findings, the most expensive first, and the evidence for them."""

    findings: tuple[Finding, ...]
    looked_at: tuple[str, ...]
    not_looked_at: tuple[str, ...]
    evidence: Evidence
