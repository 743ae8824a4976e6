"""Metrics of tasks: traffic by peer and by tensor, causes of waits, and the endpoint."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorwire.metrics import observed_job
from tensorwire.metrics.task_metrics import PeerTraffic, TaskMetrics, TensorMetrics

from .slow_wire import SlowWire, worker_by_wire
from .support import TensorFlowCluster, session_config, tf1

pytestmark = pytest.mark.timeout(120, method="thread", func_only=True)

PS = "/job:ps/replica:0/task:0"
W0 = "/job:worker/replica:0/task:0"
HELD_S = 0.4


class Seen:
    """The counts of a task between two looks."""

    def __init__(self, cluster: TensorFlowCluster, task: str) -> None:
        self._cluster, self._task = cluster, task
        self.before = cluster.stats(task)

    def _now(self) -> dict[str, Any]:
        return dict(self._cluster.stats(self._task))

    def total(self, name: str) -> int:
        return int(self._now()[name] - self.before[name])

    def tensor(self, name: str, direction: str) -> TensorMetrics:
        """The counts of a tensor. Names are unique to each test, so nothing is subtracted."""
        (found,) = [
            TensorMetrics(**t)
            for t in self._now()["tensors"]
            if t["name"] == name and t["direction"] == direction
        ]
        return found


@pytest.mark.parametrize("fuse", [False, True])
def test_a_tensor_is_counted_by_name_and_peer_at_both_ends(
    wire_cluster: TensorFlowCluster, fuse: bool
) -> None:
    name = f"counted_{fuse}"
    ps, worker = Seen(wire_cluster, "ps:0"), Seen(wire_cluster, "worker:0")
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            tensors = [tf.random.uniform([1000], name=f"{name}_{i}") for i in range(2)]
        with tf.device(W0):
            total = tf.add_n(tensors)
        config = session_config()
        if fuse:
            config.graph_options.rewrite_options.custom_optimizers.add(name="tensorwire_fuse")
        with tf1.Session(wire_cluster.target(), graph, config) as session:
            for _ in range(5):
                session.run(total)
    node = f"{name}_0/RandomUniform"
    sent = ps.tensor(node, "fused" if fuse else "out")
    assert (sent.task, sent.peer) == (PS, W0)
    assert (sent.tensors, sent.bytes) == (5, 5 * 4000)
    assert sent.not_ready_us == sent.wire_us == 0
    if not fuse:
        received = worker.tensor(node, "in")
        assert (received.task, received.peer) == (W0, PS)
        assert (received.tensors, received.bytes) == (5, 5 * 4000)
    for end, way in ((ps, "tx"), (worker, "rx")):
        assert end.total(f"{way}_tensors") >= (5 if fuse else 10)
        assert end.total(f"{way}_tensor_bytes") >= 40_000
    peers: Any = wire_cluster.stats("worker:0")["peers"]
    (peer,) = [PeerTraffic(**p) for p in peers if p["peer"] == PS]
    assert peer.rx_tensors >= 5
    assert peer.rx_frames >= 5
    assert peer.rx_syscalls > 0


def test_what_waits_for_its_producer_is_not_blamed_on_the_wire(
    wire_cluster: TensorFlowCluster,
) -> None:
    """The tensor is made when another session fills a queue, long after it was requested."""
    worker = Seen(wire_cluster, "worker:0")
    logged = wire_cluster.log_sizes()
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            queue = tf1.FIFOQueue(9, [tf.float32], [[]], shared_name="late")
            late = queue.dequeue(name="late")
            fill = queue.enqueue([tf.constant(1.0)])
        with tf.device(W0):
            wanted = tf.identity(late + 0.0)
        with wire_cluster.session(graph) as session, wire_cluster.session(graph) as other:

            def fill_when_wanted(already: int) -> None:
                while worker.total("recv_tensors") == already:  # limited by the test's timeout
                    time.sleep(0.01)
                time.sleep(HELD_S)
                other.run(fill)

            for i in range(4):  # requested in the first step, and pushed in the others
                filling = threading.Thread(target=fill_when_wanted, args=(i,), daemon=True)
                filling.start()
                session.run(wanted)
                filling.join()
    found = worker.tensor("late", "in")
    assert found.tensors == 4
    assert found.not_ready_us > 4 * HELD_S * 1e6 * 0.5
    assert found.wire_us < found.not_ready_us
    assert worker.total("recv_waiting_us") >= found.not_ready_us
    # A push beside a waiting request would leave the request to be cancelled.
    assert worker.total("pushed_tensors") == 3
    assert "recv item cancelled" not in wire_cluster.logged_since(logged)


@pytest.fixture
def far_apart(plugin: None, tmp_path: Path) -> Iterator[tuple[TensorFlowCluster, SlowWire]]:
    """A ps that its worker reaches over a slow wire; both tasks announce themselves."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"ps": 0, "worker": taken.getsockname()[1]}
        env = {
            job: {
                "TENSORWIRE_METRICS": str(port),
                observed_job.FOLDER_VARIABLE: str(tmp_path),
            }
            for job, port in ports.items()
        }
        with worker_by_wire(SlowWire, tmp_path, env) as far_apart:
            yield far_apart


def test_a_slow_wire_is_not_blamed_on_the_producer_and_a_taken_port_ends_nothing(
    far_apart: tuple[TensorFlowCluster, SlowWire],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, wire = far_apart
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            value = tf.random.uniform([10], name="slow")
        with tf.device(W0):
            wanted = tf.identity(value + 0.0)
        with cluster.session(graph) as session:
            for _ in range(3):  # the fastest of these is the baseline for pushes
                session.run(wanted)
            before = Seen(cluster, "worker:0").tensor("slow/RandomUniform", "in")
            wire.held_s = HELD_S
            for _ in range(3):
                assert np.shape(session.run(wanted)) == (10,)
            wire.held_s = 0.0
    after = Seen(cluster, "worker:0").tensor("slow/RandomUniform", "in")
    waited_for_wire = after.wire_us - before.wire_us
    assert waited_for_wire > 3 * HELD_S * 1e6 * 0.5
    assert after.not_ready_us - before.not_ready_us < waited_for_wire

    # The ps used a free port and announced it. The worker's port was in use; it continued without.
    monkeypatch.setenv(observed_job.FOLDER_VARIABLE, str(tmp_path))
    (found,) = observed_job.discover()
    record = observed_job.fetch(found.address).metrics
    assert isinstance(record, TaskMetrics)
    assert record.name == "ps:0"
    assert record.process.pid == found.pid == cluster.tasks["ps:0"].pid
    assert record.requests >= 6
    log = cluster.tasks["worker:0"].log.read_text()
    assert "cannot serve metrics at 127.0.0.1:" in log
    assert "Address already in use" in log
