"""Rates of a job's tasks, and imbalances between them, from two readings of their metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tensorwire.metrics.task_metrics import FUSED, TaskMetrics, TensorMetrics, short_name

UNEVEN = 1.5
"""A task with this multiple of its job's mean, or more, is an imbalance."""
QUIET_BYTES_PER_S = 10e3
QUIET_CORES = 0.1
"""If the mean of a job is below these limits, imbalances are not reported."""


@dataclass(frozen=True)
class HotTensor:
    """The variable, or else the tensor, with the most bytes of a task."""

    name: str
    """Name of the variable if a task of the job knows it, else of the tensor."""
    bytes_per_s: float
    share: float
    """Share of all tensor bytes that the task moved, 0 to 1."""


@dataclass(frozen=True)
class TaskRates:
    """Rates of one task over one interval, by the clock of the task's host."""

    task: str
    """ "ps:0"."""
    cluster: str
    """The gRPC address of its cluster's first ps; "" if all tasks are of one cluster."""
    host: str
    pid: int
    seconds: float
    cores: float
    """CPU seconds per second."""
    rss_bytes: int
    in_bytes_per_s: float
    out_bytes_per_s: float
    requests_per_s: float
    """Tensors, parts of steps and operations that it served to other tasks, per second."""
    waiting: float
    """Share of the time in which a Recv waited for another task, 0 to 1."""
    wire: float
    """Share of the waiting time of Recvs that was for the wire, not for a producer, 0 to 1."""
    reactor: float
    """Share of the time in which its busiest communication thread was busy, 0 to 1."""
    hot: HotTensor | None

    @property
    def bytes_per_s(self) -> float:
        return self.in_bytes_per_s + self.out_bytes_per_s

    @property
    def job(self) -> str:
        return self.task.partition(":")[0]

    def scalars(self) -> dict[str, float]:
        """Tags and values for TensorBoard."""
        names = (
            *("in_bytes_per_s", "out_bytes_per_s", "requests_per_s", "waiting", "wire"),
            *("reactor", "cores", "rss_bytes"),
        )
        return {f"tensorwire/{name}": float(getattr(self, name)) for name in names}


@dataclass(frozen=True)
class Imbalance:
    """A task with a much higher rate than the mean of its job."""

    task: str
    cluster: str
    """The cluster, as in `TaskRates`."""
    what: str
    """ "bytes" or "CPU"."""
    over_mean: float
    """The task's rate divided by the mean of its job."""
    share: float
    """Share of the job's total, 0 to 1."""
    hot: HotTensor | None
    """The tensor with the most bytes; for the metric "bytes" only."""


@dataclass(frozen=True)
class QueueWorkerRates:
    """A worker's part in a work queue."""

    worker: str
    in_work: int
    done: int
    done_per_s: float


@dataclass(frozen=True)
class QueueRates:
    """A work queue of the job; counts as in `WorkQueueMetrics`."""

    name: str
    items: int
    done: int
    in_work: int
    returned: int
    workers: tuple[QueueWorkerRates, ...]


@dataclass(frozen=True)
class TableRates:
    """A table that grows with its keys."""

    task: str
    name: str
    rows: int
    bytes: int
    new_rows_per_s: float


@dataclass(frozen=True)
class JobRates:
    """The rates of a job's tasks between two readings."""

    tasks: tuple[TaskRates, ...]
    imbalances: tuple[Imbalance, ...]
    unreachable: Mapping[str, str]
    """The reason for each endpoint without metrics."""
    queues: tuple[QueueRates, ...] = ()
    tables: tuple[TableRates, ...] = ()
    """The largest first."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def between(
    before: TaskMetrics,
    now: TaskMetrics,
    variables: Mapping[str, str] | None = None,
    cluster: str = "",
) -> TaskRates | None:
    """The rates of one process; None if the records are of two processes or no time has passed.

    `variables` names the variable of a tensor; `cluster` is as in `TaskRates`.
    """
    same = (before.process.host, before.process.pid) == (now.process.host, now.process.pid)
    seconds = (now.clock_us - before.clock_us) / 1e6
    if not same or seconds <= 0:
        return None

    moved = now.since(before)
    not_ready_us = sum(peer.not_ready_us for peer in moved.peers)
    wire_us = sum(peer.wire_us for peer in moved.peers)
    busy_us = max((reactor.busy_us for reactor in moved.reactors), default=0)
    return TaskRates(
        task=now.name,
        cluster=cluster,
        host=now.process.host,
        pid=now.process.pid,
        seconds=seconds,
        cores=max(0.0, moved.process.cpu_s) / seconds,
        rss_bytes=now.process.rss_bytes,
        in_bytes_per_s=max(0, sum(peer.in_bytes for peer in moved.peers)) / seconds,
        out_bytes_per_s=max(0, sum(peer.out_bytes for peer in moved.peers)) / seconds,
        requests_per_s=max(0, moved.requests) / seconds,
        waiting=_share(moved.recv_waiting_us, seconds * 1e6),
        wire=_share(wire_us, not_ready_us + wire_us),
        reactor=_share(busy_us, seconds * 1e6),
        hot=_hottest(moved.tensors, seconds, variables or {}),
    )


def job_rates(
    before: Iterable[TaskMetrics],
    now: Iterable[TaskMetrics],
    unreachable: Mapping[str, str] | None = None,
) -> JobRates:
    """The rates of all tasks between two readings. A new task has rates from the next one on."""
    known = {(each.process.host, each.process.pid): each for each in before}
    tasks: list[TaskRates] = []
    queues: list[QueueRates] = []
    tables: list[TableRates] = []
    for cluster, members in by_cluster(now).items():
        # A master knows the graph; a ps knows only the names of tensors that it sends.
        variables = {v.tensor: v.name for each in members for v in each.variables if v.tensor}
        for each in members:
            earlier = known.get((each.process.host, each.process.pid))
            rates = between(earlier, each, variables, cluster) if earlier is not None else None
            if rates is not None:
                tasks.append(rates)
            if earlier is not None and rates is not None:
                queues += _queues(earlier, each, rates.seconds)
                tables += _tables(earlier, each, rates.seconds)
    tasks.sort(key=lambda rates: (rates.cluster, _natural(rates.task)))
    uneven = tuple(find_imbalances(tasks))
    tables.sort(key=lambda table: (-table.bytes, -table.rows))
    return JobRates(tuple(tasks), uneven, dict(unreachable or {}), tuple(queues), tuple(tables))


def _tables(before: TaskMetrics, now: TaskMetrics, seconds: float) -> Iterator[TableRates]:
    earlier = {(each.task, each.name): each.rows for each in before.tables}
    for each in now.tables:
        new_rows = each.rows - earlier.get((each.task, each.name), 0)
        yield TableRates(
            short_name(each.task),
            each.name,
            each.rows,
            each.rows * each.row_bytes,
            new_rows / seconds,
        )


def _queues(before: TaskMetrics, now: TaskMetrics, seconds: float) -> Iterator[QueueRates]:
    earlier = {
        (queue.name, each.worker): each.done
        for queue in before.work_queues
        for each in queue.workers
    }
    for queue in now.work_queues:
        workers = (
            QueueWorkerRates(
                short_name(each.worker),
                each.in_work,
                each.done,
                (each.done - earlier.get((queue.name, each.worker), 0)) / seconds,
            )
            for each in queue.workers
        )
        yield QueueRates(
            queue.name.removesuffix("/state"),
            *(queue.items, queue.done, queue.in_work, queue.returned),
            tuple(sorted(workers, key=lambda w: _natural(w.worker))),
        )


def by_cluster(metrics: Iterable[TaskMetrics]) -> dict[str, list[TaskMetrics]]:
    """Tasks by their cluster; all under "" if no two tasks have the same name.

    In that case they are of one job, even if its tasks use different names for the first ps.
    """
    known = list(metrics)
    named = [each.name for each in known if each.tasks]
    if len(named) == len(set(named)):
        return {"": known}
    found: dict[str, list[TaskMetrics]] = defaultdict(list)
    for each in known:
        found[each.cluster].append(each)
    return dict(found)


def find_imbalances(tasks: Sequence[TaskRates]) -> list[Imbalance]:
    """The tasks with at least UNEVEN times the mean bytes or CPU of their job.

    Jobs with one task and nearly idle jobs have none.
    """
    jobs: dict[tuple[str, str], list[TaskRates]] = defaultdict(list)
    for task in tasks:
        jobs[task.cluster, task.job].append(task)
    found = []
    for members in jobs.values():
        for what, quiet in (("bytes", QUIET_BYTES_PER_S), ("CPU", QUIET_CORES)):
            amounts = [m.bytes_per_s if what == "bytes" else m.cores for m in members]
            mean = sum(amounts) / len(members)
            if len(members) < 2 or mean < quiet:
                continue
            found += [
                Imbalance(
                    task=member.task,
                    cluster=member.cluster,
                    what=what,
                    over_mean=amount / mean,
                    share=amount / sum(amounts),
                    hot=member.hot if what == "bytes" else None,
                )
                for member, amount in zip(members, amounts, strict=True)
                if amount >= UNEVEN * mean
            ]
    return found


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def _hottest(
    tensors: Sequence[TensorMetrics], seconds: float, variables: Mapping[str, str]
) -> HotTensor | None:
    """The variable or tensor with the most bytes, over all peers and both directions."""
    moved: dict[str, int] = defaultdict(int)
    # The tensors within a fused tensor are already counted in it.
    total = sum(tensor.bytes for tensor in tensors if tensor.direction != FUSED)
    for tensor in tensors:
        if tensor.name:
            moved[variables.get(tensor.name, tensor.name)] += tensor.bytes
    if total <= 0 or not moved:
        return None
    name = max(moved, key=lambda each: moved[each])
    if moved[name] <= 0:
        return None
    return HotTensor(name, moved[name] / seconds, _share(moved[name], total))


def _natural(task: str) -> tuple[str, int, str]:
    """A sort key that puts worker:2 before worker:10."""
    job, _, index = task.partition(":")
    return (job, int(index), "") if index.isdecimal() else (job, -1, index)
