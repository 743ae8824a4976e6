"""A task's metrics as Prometheus metrics, with Prometheus' conventions for names and units."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tensorwire.metrics.collect import Source
from tensorwire.metrics.task_metrics import TaskMetrics, short_name

MOST_TENSORS = 20
"""Number of tensors with their own label: those with the most bytes. Limits the label count."""

_BY_DIRECTION = ("task", "peer", "direction")

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
    yield from _peers(record)
    yield from _process(record)
    yield from _tensors(record)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"tensorwire_{name}", text, labels=labels)


def _peers(record: TaskMetrics) -> Iterator[Metric]:
    sent = _counter(
        "peer_bytes",
        "Bytes moved between a task and a peer, over TCP or through shared memory.",
        *("task", "peer", "direction", "way"),
    )
    frames = _counter("peer_frames", "Messages on connections.", *_BY_DIRECTION)
    syscalls = _counter("peer_syscalls", "System calls that moved bytes.", *_BY_DIRECTION)
    tensors = _counter("peer_tensors", "Tensors.", *_BY_DIRECTION)
    tensor_bytes = _counter("peer_tensor_bytes", "Bytes of tensors.", *_BY_DIRECTION)
    connects = _counter("peer_connects", "Connections that were established.", "task", "peer")
    damaged = _counter(
        "peer_damaged_frames", "Messages whose checksum did not match.", "task", "peer"
    )
    waits = _counter(
        "recv_wait_seconds",
        "Waiting, summed over Recvs: for the peer to make the tensor (not_ready), or for the wire.",
        *("task", "peer", "reason"),
    )
    for peer in record.peers:
        ends = [short_name(peer.task), short_name(peer.peer)]
        sent.add_metric([*ends, "out", "tcp"], peer.tx_bytes)
        sent.add_metric([*ends, "in", "tcp"], peer.rx_bytes)
        sent.add_metric([*ends, "out", "memory"], peer.lent_bytes)
        sent.add_metric([*ends, "in", "memory"], peer.read_bytes)
        for family, out, into in (
            (frames, peer.tx_frames, peer.rx_frames),
            (syscalls, peer.tx_syscalls, peer.rx_syscalls),
            (tensors, peer.tx_tensors, peer.rx_tensors),
            (tensor_bytes, peer.tx_tensor_bytes, peer.rx_tensor_bytes),
        ):
            family.add_metric([*ends, "out"], out)
            family.add_metric([*ends, "in"], into)
        connects.add_metric(ends, peer.connects)
        damaged.add_metric(ends, peer.damaged_frames)
        waits.add_metric([*ends, "not_ready"], peer.not_ready_us / 1e6)
        waits.add_metric([*ends, "wire"], peer.wire_us / 1e6)
    yield from (sent, frames, syscalls, tensors, tensor_bytes, connects, damaged, waits)


def _process(record: TaskMetrics) -> Iterator[Metric]:
    tasks = GaugeMetricFamily(
        "tensorwire_task_polling",
        "1 if the communication threads of a task poll.",
        labels=["task"],
    )
    for task in record.tasks:
        tasks.add_metric([short_name(task.task)], task.polling)
    yield tasks

    requests = _counter("requests", "Requests from other tasks.", "kind")
    requests.add_metric(["recv_tensor"], record.served_tensors)
    requests.add_metric(["run_graph"], record.run_graphs)
    requests.add_metric(["eager"], record.eager_calls)
    yield requests
    for name, text, value in (
        ("recv_tensors", "Tensors received from other tasks.", record.recv_tensors),
        (
            "pushed_tensors",
            "Of the received tensors, those that were pushed.",
            record.pushed_tensors,
        ),
        ("fused_messages", "Messages of fused tensors.", record.fused_messages),
        ("fused_tensors", "Tensors in messages of fused tensors.", record.fused_tensors),
        ("looked_up_ids", "Ids of lookups that unique_pull rewrote.", record.looked_up_ids),
        ("unique_ids", "Ids that unique_pull sent for these lookups.", record.unique_ids),
        (
            "recv_waiting_seconds",
            "Time in which at least one Recv waited for another task.",
            record.recv_waiting_us / 1e6,
        ),
    ):
        family = _counter(name, text)
        family.add_metric([], value)
        yield family

    busy = _counter(
        "reactor_busy_seconds", "Time in which a communication thread was busy.", "task", "reactor"
    )
    for reactor in record.reactors:
        busy.add_metric([short_name(reactor.task), str(reactor.index)], reactor.busy_us / 1e6)
    yield busy

    yield GaugeMetricFamily(
        "tensorwire_pool_used_bytes", "Pooled memory in use.", record.pool.used_bytes
    )
    yield GaugeMetricFamily(
        "tensorwire_pool_kept_bytes",
        "Pooled memory that is free for reuse.",
        record.pool.kept_bytes,
    )
    blocks = _counter(
        "pool_blocks", "Blocks of pooled memory: reused (hit) or allocated (miss).", "result"
    )
    blocks.add_metric(["hit"], record.pool.hits)
    blocks.add_metric(["miss"], record.pool.misses)
    yield blocks


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
