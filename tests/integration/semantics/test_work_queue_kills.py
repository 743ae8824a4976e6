"""What a work queue keeps when tasks are killed at random moments.

`TENSORWIRE_KILLS=100 pytest tests/integration/semantics/test_work_queue_kills.py` makes 100 runs.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorwire.tf import WorkQueue
from waiting import wait_until

from .support import STEP_TIMEOUT_MS, TensorFlowCluster, tf1
from .test_work_queue import Worker, next_of, queue_of

ITEMS, ROWS = 40, 3
RUNS = int(os.environ.get("TENSORWIRE_KILLS", "2"))

pytestmark = [pytest.mark.newest, pytest.mark.timeout(300, func_only=True)]


def _training(queue: WorkQueue) -> Any:
    """A step that counts one row of an item, and reports it."""
    rows = queue.dataset(
        lambda item: tf.data.Dataset.range(ROWS).map(
            lambda row: tf.stack([tf.strings.to_number(item, tf.int64), row])
        )
    )
    cell, receipt = next_of(rows)
    zeros = tf1.zeros_initializer()
    trained = tf1.get_variable("trained", [ITEMS, ROWS], tf.int64, zeros, use_resource=True)
    with tf.control_dependencies([trained.scatter_nd_add([cell], [1])]):
        return queue.done(receipt)


class Job:
    """A cluster with a ps, and workers that train in threads until all items are done."""

    def __init__(self, protocol: str, workers: int, checkpoints: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = TensorFlowCluster(protocol, {"ps": 1, "worker": workers}, plugin=True)
        self._checkpoints, self._count = checkpoints, workers
        self._workers: list[Worker] = []
        self._errors: list[BaseException] = []

    def run(self, meanwhile: Callable[[], None]) -> np.ndarray:
        """Returns how often each row of each item was trained on."""
        self.cluster.start_all()
        self._workers = [
            Worker(self.cluster, index, ITEMS, _training, self._checkpoints, shuffle=False)
            for index in range(self._count)
        ]
        threads = [
            threading.Thread(target=self._train, args=[each], daemon=True) for each in self._workers
        ]
        for thread in threads:
            thread.start()
        meanwhile()
        for thread in threads:
            thread.join(2 * STEP_TIMEOUT_MS / 1e3)
            assert not thread.is_alive()
        assert not self._errors, self._errors
        for worker in self._workers:
            worker.close()
        with self.cluster.session(self._workers[0].graph) as session:
            return session.run("trained/Read/ReadVariableOp:0")  # type: ignore[no-any-return]

    def _train(self, worker: Worker) -> None:
        try:
            with worker.graph.as_default():  # a session that recovers looks into it
                while True:
                    worker.take()
                    time.sleep(0.005)
        except tf.errors.OutOfRangeError:
            pass
        except BaseException as error:
            self._errors.append(error)

    def kill(self, job: str, index: int) -> None:
        """Kills the task at a random moment while items are left, and starts it again."""
        done = queue_of(self.cluster)["done"]
        wanted = self.random.randrange(done, max(done + 1, ITEMS - 10))
        wait_until(lambda: queue_of(self.cluster)["done"] >= wanted, STEP_TIMEOUT_MS / 1e3)
        time.sleep(self.random.uniform(0, 0.02))
        self.cluster.tasks[f"{job}:{index}"].stop(signal.SIGKILL)
        self.cluster.ready(self.cluster.begin(job, index))

    def save(self) -> str:
        """Saves a checkpoint while the worker trains."""
        graph = self._workers[0].graph
        (saver,) = graph.get_collection(tf1.GraphKeys.SAVERS)
        with graph.as_default(), self.cluster.session(graph) as session:
            return str(saver.save(session, str(self._checkpoints / "model.ckpt"), global_step=1))


@pytest.mark.parametrize("seed", range(0, RUNS, 2))
def test_no_item_is_lost_with_a_worker(protocol: str, tmp_path: Path, seed: int) -> None:
    job = Job(protocol, 2, tmp_path, seed)
    with job.cluster:
        trained = job.run(lambda: job.kill("worker", 1))
    assert trained.min() >= 1, trained


@pytest.mark.parametrize("seed", range(1, RUNS, 2))
def test_what_a_checkpoint_calls_done_is_not_done_again(
    protocol: str, tmp_path: Path, seed: int
) -> None:
    job = Job(protocol, 1, tmp_path, seed)
    path = ""

    def save_and_kill() -> None:
        nonlocal path
        wanted = job.random.randrange(ITEMS // 2)
        wait_until(lambda: queue_of(job.cluster)["done"] >= wanted, STEP_TIMEOUT_MS / 1e3)
        path = job.save()
        job.kill("ps", 0)

    with job.cluster:
        trained = job.run(save_and_kill)
    assert trained.min() >= 1, trained  # nothing is lost
    saved = tf.train.load_checkpoint(path)
    taken, *in_work = saved.get_tensor("work_queue/state").tolist()[2:]
    done = [item for item in range(taken) if item not in in_work[::2]]
    assert (trained[done] == 1).all(), (trained, done)
    assert (saved.get_tensor("trained")[done] == 1).all()
