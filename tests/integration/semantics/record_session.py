"""Records the communication of two TensorFlow tasks, for tests that replay it.

Run in tests/ as `python -m integration.semantics.record_session`. It writes recorded/: the bytes
that the worker, as a client, sent to the data port of the ps and received from it, and the same
with swapped roles. The tensors are small and of several types, with all kinds of requests and
feeds. Run it again when the wire format changes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tensorwire.bench.lab.ports import PortLease

from .slow_wire import SlowWire
from .support import TensorFlowCluster, tf1

FOLDER = Path(__file__).with_name("recorded")
PS = "/job:ps/task:0"
WORKER = "/job:worker/task:0"


class Recorder(SlowWire):
    """A wire that records the bytes that pass."""

    def __init__(self, port: int, target: int) -> None:
        self.said = bytearray()
        self.answered = bytearray()
        super().__init__(port, target)

    def passes(self, data: bytes, from_target: bool) -> bytes:
        (self.answered if from_target else self.said).extend(data)
        return data


def training() -> tuple[tf.Graph, Any, Any]:
    """(graph, initializer, step)"""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            weights = tf1.get_variable("weights", [40], initializer=tf1.ones_initializer())
            names = tf.constant(["one", "two", "three"], name="names")
            nothing = tf.zeros([0, 3], tf.int64)
        with tf.device(WORKER):
            fed = tf1.placeholder_with_default(np.arange(40, dtype=np.float32), [40], name="fed")
            gradient = tf.identity(weights) * fed
            words = tf.strings.join([names, names])
            dead, alive = tf1.cond(
                tf.reduce_sum(weights) > 0.0,
                lambda: (tf.constant(1.0), tf.constant(True)),
                lambda: (tf.constant(2.0), tf.constant(False)),
            )
            rows = tf.shape(nothing)[0]
        with tf.device(PS):
            update = tf1.assign_sub(weights, 0.01 * gradient)
            said = tf.strings.length(words)
        step = [tf.reduce_sum(update), said, dead, alive, rows]
        return graph, tf1.global_variables_initializer(), step


def record() -> dict[str, bytes]:
    lease = PortLease()
    folder = tempfile.TemporaryDirectory()
    with TensorFlowCluster("grpc++", {"ps": 1, "worker": 1}) as cluster, folder:
        wires, maps = {}, {}
        tasks = {job: hosts[0] for job, hosts in cluster.spec.items()}
        for job, address in tasks.items():
            data, by_wire = lease.take(), lease.take()
            wires[job] = Recorder(by_wire, data)
            for asker in tasks:
                port = data if asker == job else by_wire
                maps.setdefault(asker, []).append(f"{address}=127.0.0.1:{port}")
        for job, lines in maps.items():
            own = Path(folder.name) / job
            own.mkdir()
            (own / ".endpoint_map").write_text("\n".join(lines))
            cluster.begin(job, 0, {"TENSORWIRE_TRANSPORT": "tcp"}, own)
        cluster.ready(*cluster.tasks.values())
        graph, initializer, step = training()
        with cluster.session(graph) as session:
            session.run(initializer)
            for _ in range(4):
                session.run(step)
            session.run(step, {"fed:0": np.ones(40)})
        for wire in wires.values():
            wire.close()
    lease.release()
    return {
        f"{direction}_{job}": bytes(said)
        for job, wire in wires.items()
        for direction, said in (("to", wire.said), ("from", wire.answered))
    }


def main() -> None:
    import tensorwire.tf  # noqa: F401

    FOLDER.mkdir(exist_ok=True)
    for name, said in record().items():
        (FOLDER / name).write_bytes(said)


if __name__ == "__main__":
    main()
