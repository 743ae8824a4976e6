"""A chief whose functions fail; measures the memory that they leave in the tasks.

usage: failing_functions_script.py '{"protocol", "spec", "pids", "mode", "calls", "most_growth_mb"}'
Prints, as JSON, the resident MB of each task before and after the calls, and errors of calls that
should not fail. The tensors of the last calls may be there for a moment longer, so it waits for up
to PATIENCE_S until no task has grown by more than most_growth_mb.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import psutil
import tensorflow as tf

import tensorwire.tf  # noqa: F401

PS = "/job:ps/replica:0/task:0/device:CPU:0"
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
LARGE = 6_250_000  # floats, 25 MB
PARTS = 8
PATIENCE_S = 30.0
PART = 25_000  # floats: as large as a part of a fused tensor may be


def large_tensors() -> Any:
    """A function that sends a large tensor from the ps, and fails at the worker."""
    with tf.device(PS):
        variable = tf.Variable(tf.zeros([LARGE]))

    @tf.function
    def step(index: tf.Tensor) -> tf.Tensor:
        with tf.device(WORKER):
            return tf.reduce_sum(variable.read_value()) + tf.gather(tf.range(4.0), index)

    return lambda index: float(step(index)) == 1.0


def fused_tensors() -> Any:
    """A function with fused tensors, of which the last one is not made."""

    @tf.function
    def step(index: tf.Tensor) -> tf.Tensor:
        with tf.device(PS):
            # Parts that may be dead have a place to wait for the others in; a failure leaves it.
            _, index = tf.raw_ops.Switch(data=index, pred=index > 0)
            parts = [tf.fill([PART], tf.cast(index + i, tf.float32)) for i in range(PARTS)]
            # Fails after the other tensors have been made.
            with tf.control_dependencies(parts):
                last = tf.gather(tf.range(4.0), index)
        with tf.device(WORKER):
            return tf.add_n([tf.reduce_max(part) for part in parts]) + last

    return lambda index: float(step(index)) == PARTS * 1.0 + sum(range(PARTS)) + 1.0


def main() -> None:
    told = json.loads(sys.argv[1])
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(told["spec"]),
        job_name="chief",
        task_index=0,
        protocol=told["protocol"],
        make_master_device_default=False,
    )
    step = large_tensors() if told["mode"] == "large" else fused_tensors()

    def resident_mb() -> dict[str, float]:
        return {
            task: psutil.Process(pid).memory_info().rss / 1e6 for task, pid in told["pids"].items()
        }

    wrong = 0

    def call(times: int, fails: bool) -> None:
        nonlocal wrong
        for _ in range(times):
            if fails:
                try:
                    step(tf.constant(9))
                    wrong += 1
                except tf.errors.InvalidArgumentError:
                    pass
            wrong += not step(tf.constant(1))

    call(10, fails=False)
    before = resident_mb()
    call(told["calls"], fails=True)
    deadline = time.monotonic() + PATIENCE_S
    after = resident_mb()
    while time.monotonic() < deadline and any(
        mb - before[task] > told["most_growth_mb"] for task, mb in after.items()
    ):
        time.sleep(0.1)
        after = resident_mb()
    print(json.dumps({"before": before, "after": after, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    main()
