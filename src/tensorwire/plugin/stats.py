"""What `tensorwire.tf.stats` returns: the plug-in's counts since the process started, with sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, TypedDict, cast


class _Traffic(TypedDict):
    """tx is sent, rx is received."""

    tx_bytes: int
    rx_bytes: int
    tx_frames: int
    rx_frames: int
    tx_syscalls: int
    rx_syscalls: int
    lent_bytes: int
    read_bytes: int
    connects: int
    damaged_frames: int
    tx_tensors: int
    rx_tensors: int
    tx_tensor_bytes: int
    rx_tensor_bytes: int
    not_ready_us: int
    wire_us: int


class PeerStats(_Traffic):
    """The traffic between a task of this process and a peer."""

    task: str
    peer: str


class TensorStats(TypedDict):
    """One tensor of the graph, in one direction between a task and a peer."""

    task: str
    peer: str
    direction: str
    name: str
    tensors: int
    bytes: int
    not_ready_us: int
    wire_us: int
    waiting: int


class TaskStats(TypedDict):
    """A task of this process."""

    task: str
    cluster: str
    polling: int


class Stats(_Traffic):
    """Totals over all peers, and what `metrics.task_metrics.TaskMetrics` describes."""

    clock_us: int
    recv_tensors: int
    pushed_tensors: int
    served_tensors: int
    run_graphs: int
    eager_calls: int
    fused_messages: int
    fused_tensors: int
    looked_up_ids: int
    unique_ids: int
    recv_waiting_us: int
    open_sessions: int
    running_graphs: int
    session_graphs: int
    unfiltered_graphs: int
    pool: dict[str, int]
    peers: list[PeerStats]
    tensors: list[TensorStats]
    tasks: list[TaskStats]
    reactors: list[dict[str, str | int]]
    variables: list[dict[str, str | int]]
    awaited_tasks: list[dict[str, str]]
    rewrites: list[dict[str, str | int]]
    wire_dtypes: list[dict[str, str]]
    work_queues: list[dict[str, Any]]


_OF_TENSORS = {
    "tx_tensors", "rx_tensors", "tx_tensor_bytes", "rx_tensor_bytes", "not_ready_us", "wire_us",
}  # fmt: skip
_OF_CONNECTIONS = _Traffic.__annotations__.keys() - _OF_TENSORS


def with_sums(found: dict[str, Any]) -> Stats:
    """The plug-in's figures, with each peer's tensors summed over their names, and with totals."""
    tensors: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for each in found["tensors"]:
        if each["direction"] == "fused":
            continue  # the tensor that carries it is counted
        way = "tx" if each["direction"] == "out" else "rx"
        tensors[each["task"], each["peer"]].update(
            {
                f"{way}_tensors": each["tensors"],
                f"{way}_tensor_bytes": each["bytes"],
                "not_ready_us": each["not_ready_us"],
                "wire_us": each["wire_us"],
            }
        )
    totals = {name: sum(peer[name] for peer in found["peers"]) for name in _OF_CONNECTIONS}
    totals |= {name: sum(each[name] for each in tensors.values()) for name in _OF_TENSORS}
    peers = [
        peer | {name: tensors[peer["task"], peer["peer"]][name] for name in _OF_TENSORS}
        for peer in found["peers"]
    ]
    return cast(Stats, {**totals, **found, "peers": peers})
