"""A task's metrics as Prometheus metrics, with Prometheus' conventions for names and units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric
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
    yield from _families(_OF_PEERS, peers, "task", "peer")
    tasks = [((short_name(each.task),), each) for each in record.tasks]
    yield from _families(_OF_SERVED_TASKS, tasks, "task")
    yield from _families(_OF_PROCESS, [((), record)])
    reactors = [((short_name(each.task), str(each.index)), each) for each in record.reactors]
    yield from _families(_OF_REACTORS, reactors, "task", "reactor")
    yield from _families(_OF_POOL, [((), record.pool)])
    largest = sorted(record.tensors, key=lambda tensor: tensor.bytes, reverse=True)
    tensors = [
        ((short_name(each.task), short_name(each.peer), each.direction, each.name), each)
        for each in largest
        if each.name
    ]
    labels = ("task", "peer", "direction", "tensor")
    yield from _families(_OF_TENSORS, tensors[:MOST_TENSORS], *labels)
    tables = [((short_name(each.task), each.name), each) for each in record.tables]
    yield from _families(_OF_TABLES, tables, "task", "table")
    queues = record.work_queues
    yield from _families(_OF_QUEUES, [((queue.name,), queue) for queue in queues], "queue")
    workers = [((q.name, short_name(each.worker)), each) for q in queues for each in q.workers]
    yield from _families(_OF_QUEUE_WORKERS, workers, "queue", "worker")


_Families = Sequence[tuple[type[Counter] | type[Gauge], str, str, Sequence[str], Mapping[Any, str]]]
"""Kind, name, help, labels besides those that name the record, and fields by these labels."""

_OF_PEERS: _Families = (
    (Counter, "peer_bytes",
     "Bytes moved between a task and a peer, over TCP or through shared memory.",
     ("direction", "way"), {("out", "tcp"): "tx_bytes", ("in", "tcp"): "rx_bytes",
                            ("out", "memory"): "lent_bytes", ("in", "memory"): "read_bytes"}),
    (Counter, "peer_frames", "Messages on connections.",
     ("direction",), {("out",): "tx_frames", ("in",): "rx_frames"}),
    (Counter, "peer_syscalls", "System calls that moved bytes.",
     ("direction",), {("out",): "tx_syscalls", ("in",): "rx_syscalls"}),
    (Counter, "peer_tensors", "Tensors.",
     ("direction",), {("out",): "tx_tensors", ("in",): "rx_tensors"}),
    (Counter, "peer_tensor_bytes", "Bytes of tensors.",
     ("direction",), {("out",): "tx_tensor_bytes", ("in",): "rx_tensor_bytes"}),
    (Counter, "peer_connects", "Connections that were established.", (), {(): "connects"}),
    (Counter, "peer_damaged_frames", "Messages whose checksum did not match.",
     (), {(): "damaged_frames"}),
    (Counter, "recv_wait_seconds",
     "Waiting, summed over Recvs: for the peer to make the tensor (not_ready), or for the wire.",
     ("reason",), {("not_ready",): "not_ready_us", ("wire",): "wire_us"}),
)  # fmt: skip
_OF_SERVED_TASKS: _Families = (
    (Gauge, "task_polling", "1 if the communication threads of a task poll.",
     (), {(): "polling"}),
)  # fmt: skip
_OF_PROCESS: _Families = (
    (Counter, "requests", "Requests from other tasks.", ("kind",),
     {("recv_tensor",): "served_tensors", ("run_graph",): "run_graphs", ("eager",): "eager_calls"}),
    (Counter, "recv_tensors", "Tensors received from other tasks.", (), {(): "recv_tensors"}),
    (Counter, "pushed_tensors", "Of the received tensors, those that were pushed.",
     (), {(): "pushed_tensors"}),
    (Counter, "fused_messages", "Messages of fused tensors.", (), {(): "fused_messages"}),
    (Counter, "fused_tensors", "Tensors in messages of fused tensors.",
     (), {(): "fused_tensors"}),
    (Counter, "looked_up_ids", "Ids of lookups that unique_pull rewrote.",
     (), {(): "looked_up_ids"}),
    (Counter, "unique_ids", "Ids that unique_pull sent for these lookups.",
     (), {(): "unique_ids"}),
    (Counter, "recv_waiting_seconds", "Time in which at least one Recv waited for another task.",
     (), {(): "recv_waiting_us"}),
)  # fmt: skip
_OF_REACTORS: _Families = (
    (Counter, "reactor_busy_seconds", "Time in which a communication thread was busy.",
     (), {(): "busy_us"}),
)  # fmt: skip
_OF_POOL: _Families = (
    (Gauge, "pool_used_bytes", "Pooled memory in use.", (), {(): "used_bytes"}),
    (Gauge, "pool_kept_bytes", "Pooled memory that is free for reuse.", (), {(): "kept_bytes"}),
    (Counter, "pool_blocks", "Blocks of pooled memory: reused (hit) or allocated (miss).",
     ("result",), {("hit",): "hits", ("miss",): "misses"}),
)  # fmt: skip
_OF_TENSORS: _Families = (
    (Counter, "tensor_bytes", f"Bytes of tensors, of the {MOST_TENSORS} that moved most.",
     (), {(): "bytes"}),
)  # fmt: skip
_OF_TABLES: _Families = (
    (Gauge, "table_rows", "Rows of a table that grows with its keys.", (), {(): "rows"}),
    (Gauge, "table_row_bytes", "Bytes of a key and its value in such a table.",
     (), {(): "row_bytes"}),
)  # fmt: skip
_OF_QUEUES: _Families = (
    (Gauge, "work_queue_items", "Items of a work queue, by what has become of them.",
     ("state",), {("done",): "done", ("in_work",): "in_work", ("returned",): "returned"}),
)  # fmt: skip
_OF_QUEUE_WORKERS: _Families = (
    (Counter, "work_queue_done_items", "Items that a worker has done.", (), {(): "done"}),
)  # fmt: skip


def _families(
    families: _Families, records: Sequence[tuple[Sequence[str], Any]], *labels: str
) -> Iterator[Metric]:
    """The metrics of some records; each record comes with the values of `labels`."""
    for kind, name, text, own_labels, fields in families:
        family = kind(f"tensorwire_{name}", text, labels=(*labels, *own_labels))
        for of_record, record in records:
            for values, field in fields.items():
                value = getattr(record, field)
                family.add_metric(
                    [*of_record, *values], value / 1e6 if field.endswith("_us") else value
                )
        yield family
