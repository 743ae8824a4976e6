"""Trains with train_with_restarts while ps are killed and started again; prints RESULTS.

--protocol of the cluster. In each of the first calls of `train` a ps is killed in mid-step. The
results are the values of the variables with which each call began, those at the end, and the error
of a training whose ps does not come back.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorwire.errors import TensorwireError
from tensorwire.tf import train_with_restarts

sys.path.insert(0, str(Path(__file__).parents[2]))
from integration.semantics.support import TensorFlowCluster

LOST = ("ps:1", "ps:0", "ps:1")
STEPS = 5


class Training:
    """`train` for train_with_restarts: each step adds 1 to each of four variables on two ps."""

    def __init__(self, cluster: TensorFlowCluster, directory: str) -> None:
        self._cluster = cluster
        self._directory = directory
        self._lost = 0
        self.begun: list[list[float]] = []

    def __call__(self, strategy: Any, coordinator: Any) -> list[float]:
        with strategy.scope():
            variables = [tf.Variable(tf.zeros([1000])) for _ in range(4)]
        checkpoint = tf.train.Checkpoint(variables=variables)
        manager = tf.train.CheckpointManager(checkpoint, self._directory, 1)
        checkpoint.restore(manager.latest_checkpoint)
        values = lambda: [float(each[0].numpy()) for each in variables]  # noqa: E731
        self.begun.append(values())

        @tf.function
        def step() -> None:
            for each in variables:
                each.assign_add(tf.ones_like(each))

        def run() -> None:
            for _ in range(STEPS):
                coordinator.schedule(step)
            coordinator.join()

        run()
        manager.save()
        if self._lost < len(LOST):
            run()  # lost, as it is not saved
            threading.Thread(target=self._replace, args=(LOST[self._lost],)).start()
            self._lost += 1
            while True:  # until the loss is seen
                run()
        return values()

    def _replace(self, task: str) -> None:
        self._cluster.tasks[task].stop(signal.SIGKILL)
        self._cluster.ready(self._cluster.begin("ps", int(task[3:])))


def main() -> None:
    jobs = {"ps": 2, "worker": 2, "chief": 1}
    with (
        TensorFlowCluster(sys.argv[2], jobs, plugin=True) as cluster,
        tempfile.TemporaryDirectory() as directory,
    ):
        tasks = [cluster.begin(job, index) for job in ("ps", "worker") for index in range(2)]
        cluster.ready(*tasks)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster.spec),
            task_type="chief",
            task_id=0,
            rpc_layer=cluster.protocol,
        )
        training = Training(cluster, directory)
        ended = train_with_restarts(resolver, training)
        cluster.tasks["ps:1"].stop(signal.SIGKILL)
        try:
            train_with_restarts(resolver, training, wait_s=0.1)
        except TensorwireError as error:
            words = str(error)
        print("RESULTS", json.dumps([training.begun, ended, words]), flush=True)
    os._exit(0)  # TensorFlow's destructors would wait for tasks that have ended


if __name__ == "__main__":
    main()
