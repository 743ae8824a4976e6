"""A task's metrics as Prometheus metrics, with Prometheus' conventions for names and units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tensorwire.metrics.collect import Source
from tensorwire.metrics.task_metrics import TaskMetrics, short_name

MOST_TENSORS = 20
"""Number of tensors with their own label: those with the most bytes. Limits the label count."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsCollector(Collector):
    """Reads the metrics at each scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        return metrics(self._source())


def exposition(source: Source) -> bytes:
    """The answer to a scrape, as CONTENT_TYPE: metrics of the task and of its process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(MetricsCollector(source))
    return generate_latest(registry)


def metrics(record: TaskMetrics) -> Iterator[Metric]:
    """All metrics of one record. Tasks are labelled "ps:0"."""
    peers = [((short_name(each.task), short_name(each.peer)), each) for each in record.peers]
    yield from _counted(_OF_PEERS, peers, ("task", "peer"))
    yield from _process(record)
    yield from _tensors(record)
    yield from _work_queues(record)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"tensorwire_{name}", text, labels=labels)


_OF_PEERS = (
    ("peer_bytes", "Bytes moved between a task and a peer, over TCP or through shared memory.",
     ("direction", "way"), {("out", "tcp"): "tx_bytes", ("in", "tcp"): "rx_bytes",
                            ("out", "memory"): "lent_bytes", ("in", "memory"): "read_bytes"}),
    ("peer_frames", "Messages on connections.",
     ("direction",), {("out",): "tx_frames", ("in",): "rx_frames"}),
    ("peer_syscalls", "System calls that moved bytes.",
     ("direction",), {("out",): "tx_syscalls", ("in",): "rx_syscalls"}),
    ("peer_tensors", "Tensors.",
     ("direction",), {("out",): "tx_tensors", ("in",): "rx_tensors"}),
    ("peer_tensor_bytes", "Bytes of tensors.",
     ("direction",), {("out",): "tx_tensor_bytes", ("in",): "rx_tensor_bytes"}),
    ("peer_connects", "Connections that were established.", (), {(): "connects"}),
    ("peer_damaged_frames", "Messages whose checksum did not match.",
     (), {(): "damaged_frames"}),
    ("recv_wait_seconds",
     "Waiting, summed over Recvs: for the peer to make the tensor (not_ready), or for the wire.",
     ("reason",), {("not_ready",): "not_ready_us", ("wire",): "wire_us"}),
)  # fmt: skip
"""Each counter of a peer: name, help, labels besides task and peer, and fields by these labels."""

_OF_TASK = (
    ("requests", "Requests from other tasks.", ("kind",),
     {("recv_tensor",): "served_tensors", ("run_graph",): "run_graphs", ("eager",): "eager_calls"}),
    ("recv_tensors", "Tensors received from other tasks.", (), {(): "recv_tensors"}),
    ("pushed_tensors", "Of the received tensors, those that were pushed.",
     (), {(): "pushed_tensors"}),
    ("fused_messages", "Messages of fused tensors.", (), {(): "fused_messages"}),
    ("fused_tensors", "Tensors in messages of fused tensors.", (), {(): "fused_tensors"}),
    ("looked_up_ids", "Ids of lookups that unique_pull rewrote.", (), {(): "looked_up_ids"}),
    ("unique_ids", "Ids that unique_pull sent for these lookups.", (), {(): "unique_ids"}),
    ("recv_waiting_seconds", "Time in which at least one Recv waited for another task.",
     (), {(): "recv_waiting_us"}),
)  # fmt: skip
"""Each counter of a process, like `_OF_PEERS`."""

_OF_POOL = (
    ("pool_blocks", "Blocks of pooled memory: reused (hit) or allocated (miss).", ("result",),
     {("hit",): "hits", ("miss",): "misses"}),
)  # fmt: skip


def _counted(
    counters: Sequence[tuple[str, str, Sequence[str], Mapping[Any, str]]],
    records: Iterable[tuple[Sequence[str], Any]],
    labels: Sequence[str] = (),
) -> Iterator[Metric]:
    """The counters of some records; each record comes with the values of `labels`."""
    known = list(records)
    for name, text, own_labels, fields in counters:
        family = _counter(name, text, *labels, *own_labels)
        for of_record, record in known:
            for values, field in fields.items():
                value = getattr(record, field)
                family.add_metric(
                    [*of_record, *values], value / 1e6 if field.endswith("_us") else value
                )
        yield family


def _process(record: TaskMetrics) -> Iterator[Metric]:
    tasks = GaugeMetricFamily(
        "tensorwire_task_polling",
        "1 if the communication threads of a task poll.",
        labels=["task"],
    )
    for task in record.tasks:
        tasks.add_metric([short_name(task.task)], task.polling)
    yield tasks
    yield from _counted(_OF_TASK, [((), record)])
    busy = _counter(
        "reactor_busy_seconds", "Time in which a communication thread was busy.", "task", "reactor"
    )
    for reactor in record.reactors:
        busy.add_metric([short_name(reactor.task), str(reactor.index)], reactor.busy_us / 1e6)
    yield busy
    for name, text, value in (
        ("used", "Pooled memory in use.", record.pool.used_bytes),
        ("kept", "Pooled memory that is free for reuse.", record.pool.kept_bytes),
    ):
        yield GaugeMetricFamily(f"tensorwire_pool_{name}_bytes", text, value)
    yield from _counted(_OF_POOL, [((), record.pool)])


def _work_queues(record: TaskMetrics) -> Iterator[Metric]:
    items = GaugeMetricFamily(
        "tensorwire_work_queue_items",
        "Items of a work queue, by what has become of them.",
        labels=["queue", "state"],
    )
    by_worker = _counter(
        "work_queue_done_items", "Items that a worker has done.", "queue", "worker"
    )
    for queue in record.work_queues:
        for state in ("done", "in_work", "returned"):
            items.add_metric([queue.name, state], getattr(queue, state))
        for each in queue.workers:
            by_worker.add_metric([queue.name, short_name(each.worker)], each.done)
    yield items
    yield by_worker


def _tensors(record: TaskMetrics) -> Iterator[Metric]:
    family = _counter(
        "tensor_bytes",
        f"Bytes of tensors, of the {MOST_TENSORS} that moved most.",
        *("task", "peer", "direction", "tensor"),
    )
    named = [tensor for tensor in record.tensors if tensor.name]
    named.sort(key=lambda tensor: tensor.bytes, reverse=True)
    for tensor in named[:MOST_TENSORS]:
        ends = [short_name(tensor.task), short_name(tensor.peer)]
        family.add_metric([*ends, tensor.direction, tensor.name], tensor.bytes)
    yield family
