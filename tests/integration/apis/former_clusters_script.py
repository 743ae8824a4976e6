"""Coordinates one cluster after another in one process; former coordinators recover meanwhile.

The clusters have different shapes. In each, worker 0 is killed. Then the coordinator of the former
cluster recovers: with a definition out of which TensorFlow has taken the chief when the process
connected to the next cluster. The cluster's own work must be done all the same when its worker 0
is back. Prints RESULTS with the results of each cluster before and after, and how the former
coordinator's recovery ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import tensorwire.tf  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[2]))
from integration.semantics.support import TensorFlowCluster

SHAPES = ({"ps": 1, "worker": 2}, {"ps": 2, "worker": 1}, {"ps": 1, "worker": 3})
STEPS = 12
RECOVERY_S = 60.0


def coordinator_of(cluster: TensorFlowCluster) -> Any:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.spec), rpc_layer=cluster.protocol
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def work_of(coordinator: Any) -> Callable[[], list[Any]]:
    """A function that schedules steps, which use a variable of the cluster."""
    with coordinator.strategy.scope():
        variable = tf.Variable(1)

    @tf.function
    def step(number: Any) -> Any:
        return number * 2 + variable

    return lambda: [coordinator.schedule(step, (tf.constant(i),)) for i in range(STEPS)]


def recover(coordinator: Any) -> str:
    """Recovers as for a lost worker. Returns the class of the error."""
    handler = coordinator._cluster.failure_handler
    with handler._cluster_update_lock:
        handler._cluster_due_for_update_or_finish.set()
        assert handler._worker_up_cond.wait(RECOVERY_S)
        return type(handler._error_from_recovery).__name__


def main() -> None:
    former = None
    did = []
    with contextlib.ExitStack() as clusters:
        for shape in SHAPES:
            cluster = clusters.enter_context(TensorFlowCluster("grpc++", shape))
            cluster.start_all()
            coordinator = coordinator_of(cluster)
            schedule = work_of(coordinator)
            before = [int(each.fetch()) for each in schedule()]
            cluster.tasks["worker:0"].stop()
            ended = recover(former) if former is not None else ""
            pending = schedule()
            cluster.ready(cluster.begin("worker", 0))
            did.append([before, [int(each.fetch()) for each in pending], ended])
            former = coordinator
        print("RESULTS", json.dumps(did), flush=True)
    os._exit(0)  # TensorFlow's destructors would wait for tasks that have ended


if __name__ == "__main__":
    main()
