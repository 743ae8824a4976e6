"""The metrics of one task: what it moved, for whom it waited, and what its process used.

All counts run from the start of the process; two records of one task and the time between them make
rates (`tensorwire.metrics.rates`). `TaskMetrics.to_json` is what the endpoint serves under
``/figures``; docs/metrics.md describes every field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tensorwire.dataclass_json import from_document

OUT = "out"
IN = "in"
FUSED = "fused"
"""Direction of a tensor that was sent within a fused tensor, which is counted, too."""


@dataclass(frozen=True)
class PeerTraffic:
    """Between a task and one peer; `tx` is what the task sent, `rx` what it received."""

    task: str
    """In TensorFlow's long form, like all names here: "/job:ps/replica:0/task:0"."""
    peer: str
    tx_bytes: int
    """Over sockets. `lent_bytes` are on top."""
    rx_bytes: int
    tx_frames: int
    rx_frames: int
    tx_syscalls: int
    rx_syscalls: int
    lent_bytes: int
    """Payloads that the peer, on the same host, read in this task's memory."""
    read_bytes: int
    """Payloads that this task read in the peer's memory."""
    connects: int
    tx_tensors: int
    rx_tensors: int
    tx_tensor_bytes: int
    rx_tensor_bytes: int
    not_ready_us: int
    """The sum of the times for which Recvs waited because the peer had not made the tensor yet."""
    wire_us: int
    """The sum of the times for which Recvs waited for a tensor that was made."""
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
    """OUT, IN or FUSED; waits are those of IN."""
    name: str
    """Name of the node that makes it. "": all tensors without an entry of their own."""
    tensors: int
    bytes: int
    not_ready_us: int
    wire_us: int
    waiting: int = 0
    """Recvs that wait for it now; of IN."""


@dataclass(frozen=True)
class VariableMetrics:
    """A variable of a graph that a session of the task executes, and a tensor that crosses for it.

    A variable has as many of these as tensors: what others read of it, and what they update it or
    look it up with.
    """

    name: str
    task: str
    """The task that holds the variable."""
    bytes: int
    """0 where its shape is not known."""
    tensor: str
    """The name of its tensor in `TensorFigures`; "" if none crosses."""


@dataclass(frozen=True)
class ReactorMetrics:
    """A thread that moves bytes."""

    task: str
    index: int
    busy_us: int
    """Time in which it was not waiting for something to do."""


@dataclass(frozen=True)
class PoolMetrics:
    """The memory that is kept for large tensors."""

    used_bytes: int = 0
    kept_bytes: int = 0
    """Memory that is not used, and not given back to the system yet."""
    hits: int = 0
    """Blocks that were used again."""
    misses: int = 0
    """Blocks that were made."""


@dataclass(frozen=True)
class ServedTask:
    """A task that the process is. More than one only in tests and notebooks."""

    task: str
    polling: int
    """1 where its reactors spin instead of sleeping."""
    cluster: str = ""
    """The gRPC address of the cluster's first ps, which no other cluster has at that time."""


@dataclass(frozen=True)
class StepTotals:
    """The sampled steps of a task that splits their time (`metrics.breakdown`), summed."""

    sampled: int = 0
    step_s: float = 0.0
    input_s: float = 0.0
    compute_s: float = 0.0
    ps_s: float = 0.0
    wire_s: float = 0.0
    rest_s: float = 0.0


@dataclass(frozen=True)
class ProcessMetrics:
    """The process of a task, as its system sees it."""

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
    """The steady clock of the host when the counts were read: what rates divide by."""
    recv_tensors: int
    """Tensors wanted from other tasks."""
    pushed_tensors: int
    """The received tensors that arrived as pushes."""
    served_tensors: int
    """Requests for a tensor that this task answered."""
    run_graphs: int
    """Parts of steps that a master elsewhere had this task run."""
    eager_calls: int
    """Operations and functions that TF2 elsewhere had this task run."""
    fused_messages: int
    fused_tensors: int
    """Tensors that travelled in `fused_messages`."""
    recv_waiting_us: int
    """Time in which at least one Recv waited for another task, those that still wait included."""
    pool: PoolMetrics = PoolMetrics()
    tasks: tuple[ServedTask, ...] = ()
    peers: tuple[PeerTraffic, ...] = ()
    reactors: tuple[ReactorMetrics, ...] = ()
    tensors: tuple[TensorMetrics, ...] = ()
    open_sessions: int = 0
    """This task's sessions at other tasks, one for each of these, that are open now."""
    running_graphs: int = 0
    """Parts of this task's steps that other tasks execute now."""
    session_graphs: int = 0
    """Graphs that sessions of this task execute."""
    unfiltered_graphs: int = 0
    """The graphs whose session has the devices of other workers: no device_filters."""
    variables: tuple[VariableMetrics, ...] = ()
    """Variables of those graphs."""
    steps: StepTotals = StepTotals()
    """Sampled steps; there are none without a hook, a callback or a timer."""
    looked_up_ids: int = 0
    """Ids of lookups that `unique_pull` rewrote, on the task that they are from."""
    unique_ids: int = 0
    """The ids that it sent for them."""

    @property
    def name(self) -> str:
        """ "ps:0"; several are joined by commas, and a process that is no task is "pid 123"."""
        names = [short_name(task.task) for task in self.tasks]
        return ",".join(names) or f"pid {self.process.pid}"

    @property
    def cluster(self) -> str:
        """Whose task it is; "" of a process that is no task."""
        return next((task.cluster for task in self.tasks), "")

    @property
    def requests(self) -> int:
        """The requests of other tasks: for tensors, parts of steps, operations."""
        return sum(peer.tx_tensors for peer in self.peers) + self.run_graphs + self.eager_calls

    def to_json(self) -> dict[str, Any]:
        """A dict that `json.dumps` takes and `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TaskMetrics:
        """Reads what `to_json` made, perhaps by a newer version: unknown names are ignored.

        Raises:
            ValueError: something is missing.
        """
        return from_document(cls, record)


def short_name(task: str) -> str:
    """ "ps:0" of "/job:ps/replica:0/task:0"; anything else as it is."""
    found = re.fullmatch(r"/job:([^/]+)/replica:\d+/task:(\d+)", task)
    return f"{found[1]}:{found[2]}" if found else task
