"""The metrics of one task: its traffic, its waiting times, and the resources of its process.

All counts start with the process. Rates are computed from two records of a task
(`tensorwire.metrics.rates`). The endpoint serves `TaskMetrics.to_json` under ``/figures``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from tensorwire.dataclass_json import from_document

Record = TypeVar("Record")

OUT = "out"
IN = "in"
FUSED = "fused"
"""Direction of a tensor that was sent within a fused tensor; the fused tensor is counted, too."""


@dataclass(frozen=True)
class PeerTraffic:
    """The traffic between a task and one peer: `tx` is sent, `rx` is received by the task."""

    task: str
    """In TensorFlow's long form, as all task names here: "/job:ps/replica:0/task:0"."""
    peer: str
    tx_bytes: int
    """Bytes sent over sockets, without `lent_bytes`."""
    rx_bytes: int
    tx_frames: int
    rx_frames: int
    tx_syscalls: int
    rx_syscalls: int
    lent_bytes: int
    """Payload bytes that the peer, on the same host, read from this task's memory."""
    read_bytes: int
    """Payload bytes that this task read from the peer's memory."""
    connects: int
    tx_tensors: int
    rx_tensors: int
    tx_tensor_bytes: int
    rx_tensor_bytes: int
    not_ready_us: int
    """The time that Recvs waited until the peer had computed the tensor, summed over Recvs."""
    wire_us: int
    """The time that Recvs waited for a tensor that was already computed, summed over Recvs."""
    damaged_frames: int = 0
    """Frames from the peer with a wrong checksum."""

    @property
    def out_bytes(self) -> int:
        return self.tx_bytes + self.lent_bytes

    @property
    def in_bytes(self) -> int:
        return self.rx_bytes + self.read_bytes


@dataclass(frozen=True)
class TensorMetrics:
    """Metrics of one tensor of the graph, in one direction between a task and a peer."""

    task: str
    peer: str
    direction: str
    """OUT, IN or FUSED; only IN has waiting times."""
    name: str
    """Name of the node that makes it; "" for all tensors without their own entry."""
    tensors: int
    bytes: int
    not_ready_us: int
    wire_us: int
    waiting: int = 0
    """Recvs that wait for it now; for IN only."""


@dataclass(frozen=True)
class AwaitedTask:
    """A task that a session or context has waited for since ten seconds or more."""

    task: str


@dataclass(frozen=True)
class VariableMetrics:
    """A variable, or a table that grows, of a graph that a session of the task executes, and a
    tensor that crosses for it.

    It has one such record for each of its tensors: those that other tasks read, and those
    with which they update it or look it up.
    """

    name: str
    task: str
    """The task that holds the variable."""
    bytes: int
    """0 if its shape is unknown, or if it is a table."""
    tensor: str
    """The name of its tensor in `TensorMetrics`; "" if none crosses."""


@dataclass(frozen=True)
class TableMetrics:
    """A table that grows with its keys, as TFRA's do, on this task."""

    task: str
    name: str
    rows: int
    row_bytes: int
    """Bytes of a key and its value; 0 for strings."""


@dataclass(frozen=True)
class ReactorMetrics:
    """Metrics of one reactor (communication thread)."""

    task: str
    index: int
    busy_us: int
    """Time in which it was not waiting for events."""


@dataclass(frozen=True)
class PoolMetrics:
    """The pool of memory for large tensors."""

    used_bytes: int = 0
    kept_bytes: int = 0
    """Memory that is free for reuse and not yet returned to the system."""
    hits: int = 0
    """Blocks that were reused."""
    misses: int = 0
    """Blocks that were allocated."""


@dataclass(frozen=True)
class ServedTask:
    """A task of this process. Only tests and notebooks have several tasks in a process."""

    task: str
    polling: int
    """1 if its reactors poll instead of sleeping."""
    cluster: str = ""
    """The gRPC address of the cluster's first ps, which identifies the cluster."""


@dataclass(frozen=True)
class QueueWorker:
    """What a worker has of a work queue, since the ps with the queue began."""

    worker: str
    taken: int
    in_work: int
    done: int


@dataclass(frozen=True)
class WorkQueueMetrics:
    """A `tensorwire.tf.WorkQueue` that is kept on this task."""

    name: str
    items: int
    """Of all epochs; 0 if they have no end."""
    done: int
    in_work: int
    returned: int
    """Items that a worker gave back and nobody has taken again."""
    workers: tuple[QueueWorker, ...] = ()


@dataclass(frozen=True)
class StepTotals:
    """Sums over the sampled steps of a task that splits their time (`metrics.breakdown`)."""

    sampled: int = 0
    step_s: float = 0.0
    input_s: float = 0.0
    compute_s: float = 0.0
    ps_s: float = 0.0
    wire_s: float = 0.0
    rest_s: float = 0.0


@dataclass(frozen=True)
class ProcessMetrics:
    """The process of a task, from the operating system."""

    host: str
    pid: int
    cores: float
    """Cores that the process may use; a fraction if a control group limits it."""
    at_s: float
    """When the record was made, in seconds since 1970."""
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True)
class TaskMetrics:
    """All metrics of one process on grpc++."""

    process: ProcessMetrics
    clock_us: int
    """The steady clock of the host when the counts were read; used to compute rates."""
    recv_tensors: int
    """Tensors that this task requested from other tasks."""
    pushed_tensors: int
    """The received tensors that arrived as pushes."""
    served_tensors: int
    """Requests for a tensor that this task answered."""
    run_graphs: int
    """Parts of steps that this task ran for a master in another task."""
    eager_calls: int
    """Operations and functions that this task ran for TF2 in another task."""
    fused_messages: int
    fused_tensors: int
    """Tensors that were sent in `fused_messages`."""
    recv_waiting_us: int
    """Time in which at least one Recv waited for another task, including current waits."""
    pool: PoolMetrics = PoolMetrics()
    tasks: tuple[ServedTask, ...] = ()
    peers: tuple[PeerTraffic, ...] = ()
    reactors: tuple[ReactorMetrics, ...] = ()
    tensors: tuple[TensorMetrics, ...] = ()
    open_sessions: int = 0
    """Open sessions of this task at other tasks; a session counts once per such task."""
    running_graphs: int = 0
    """Parts of this task's steps that other tasks are executing."""
    session_graphs: int = 0
    """Graphs that sessions of this task execute."""
    unfiltered_graphs: int = 0
    """Those of the graphs whose session has no device_filters, so it uses other workers' devices.
    """
    awaited_tasks: tuple[AwaitedTask, ...] = ()
    """Tasks without whose answer a session of this task does not begin."""
    variables: tuple[VariableMetrics, ...] = ()
    """Variables of those graphs."""
    steps: StepTotals = StepTotals()
    """Sampled steps; zero without a hook, a callback or a timer."""
    looked_up_ids: int = 0
    """Ids of lookups that `unique_pull` rewrote, counted in the task that looks up."""
    unique_ids: int = 0
    """Ids that were sent for `looked_up_ids`, without repeats."""
    work_queues: tuple[WorkQueueMetrics, ...] = ()
    tables: tuple[TableMetrics, ...] = ()

    @property
    def name(self) -> str:
        """ "ps:0"; several are joined by commas; "pid 123" for a process that is not a task."""
        names = [short_name(task.task) for task in self.tasks]
        return ",".join(names) or f"pid {self.process.pid}"

    @property
    def cluster(self) -> str:
        """The cluster of its task; "" for a process that is not a task."""
        return next((task.cluster for task in self.tasks), "")

    @property
    def requests(self) -> int:
        """The number of served requests: for tensors, parts of steps, operations."""
        return sum(peer.tx_tensors for peer in self.peers) + self.run_graphs + self.eager_calls

    def since(self, before: TaskMetrics) -> TaskMetrics:
        """The counts between an earlier reading of this process and this one.

        What describes a state, such as the number of open sessions, is that of this reading.
        """
        states = ("open_sessions", "running_graphs", "session_graphs", "unfiltered_graphs")
        return replace(
            _since(self, before, states),
            process=replace(self.process, cpu_s=self.process.cpu_s - before.process.cpu_s),
            peers=_each_since(self.peers, before.peers, ("task", "peer")),
            reactors=_each_since(self.reactors, before.reactors, ("task", "index")),
            tensors=_each_since(
                self.tensors, before.tensors, ("task", "peer", "direction", "name"), ("waiting",)
            ),
            steps=_since(self.steps, before.steps),
        )

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dumps` takes and `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TaskMetrics:
        """Reads what `to_json` made; ignores unknown names, which may be of a newer version.

        Raises:
            ValueError: a field is missing or has a wrong type.
        """
        return from_document(cls, record)


def _since(now: Record, before: Record, states: Sequence[str] = ()) -> Record:
    """The record with the differences of all numbers that are no states."""
    numbers = {
        name: value - getattr(before, name)
        for name, value in vars(now).items()
        if isinstance(value, (int, float)) and name not in states
    }
    return replace(now, **numbers)  # type: ignore[type-var]


def _each_since(
    now: Sequence[Record], before: Sequence[Record], key: Sequence[str], states: Sequence[str] = ()
) -> tuple[Record, ...]:
    """`_since` for each record; those that are new count from zero."""
    key_of = operator.attrgetter(*key)
    earlier = {key_of(each): each for each in before}
    return tuple(
        _since(each, earlier[key_of(each)], (*key, *states)) if key_of(each) in earlier else each
        for each in now
    )


def short_name(task: str) -> str:
    """ "ps:0" for "/job:ps/replica:0/task:0"; other names are returned unchanged."""
    found = re.fullmatch(r"/job:([^/]+)/replica:\d+/task:(\d+)", task)
    return f"{found[1]}:{found[2]}" if found else task
