"""A coordinator schedules the items of a WorkQueue, and restores a checkpoint; prints RESULTS.

--protocol of the cluster. The results are what was trained on until the checkpoint, after it and
after it was restored, and how many items were done each time.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorwire.tf import WorkQueue

sys.path.insert(0, str(Path(__file__).parents[2]))
from integration.semantics.support import TensorFlowCluster

ITEMS = 20


def main() -> None:
    jobs = {"ps": 1, "worker": 2, "chief": 1}
    with (
        TensorFlowCluster(sys.argv[2], jobs, plugin=True) as cluster,
        tempfile.TemporaryDirectory() as directory,
    ):
        tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
        cluster.ready(*[cluster.begin(*task) for task in tasks])
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster.spec),
            task_type="chief",
            task_id=0,
            rpc_layer=cluster.protocol,
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        queue = WorkQueue([f"{item}" for item in range(ITEMS)])
        with strategy.scope():
            trained = tf.Variable(tf.zeros([ITEMS], tf.int32))

        @tf.function
        def train_on(text: Any, receipt: Any) -> None:
            item = tf.strings.to_number(text, tf.int32)
            trained.assign_add(tf.one_hot(item, ITEMS, dtype=tf.int32))
            queue.done(receipt)

        def train(most: int | None) -> tuple[list[int], int]:
            for item in itertools.islice(queue, most):
                coordinator.schedule(train_on, args=(item.text, item.receipt))
            coordinator.join()
            return trained.numpy().tolist(), int(queue.progress()[0].numpy())

        checkpoint = tf.train.Checkpoint(trained=trained, queue=queue)
        results = [train(ITEMS // 2)]
        path = checkpoint.save(f"{directory}/model")
        results.append(train(None))
        checkpoint.restore(path).assert_consumed()
        results.append(train(None))
        print("RESULTS", json.dumps(results), flush=True)
    os._exit(0)  # TensorFlow's destructors would wait for tasks that have ended


if __name__ == "__main__":
    main()
