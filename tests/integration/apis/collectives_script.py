"""Collective operations of two workers: their results, and their traffic over grpc++.

--mode mirrored: MultiWorkerMirroredStrategy; each worker runs the script by itself.
--mode session: the chief's client, with collective operations in its graph; the worker serves.
All numbers are integers, so that sums do not depend on the order. The file "begun" is created after
the first step. For a step that fails because the other task is lost, the error's class is reported.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from reporting import keep_reporting, report

tf1 = tf.compat.v1
LARGE = 1_000_000  # elements; a ring sends them in parts
LIMIT = 1000.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol")
    parser.add_argument("--directory", required=True)
    parser.add_argument("--mode", choices=["mirrored", "session"], required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--fails", action="store_true", help="a step fails, and others follow it")
    options = parser.parse_args()
    if options.protocol == "grpc++":
        import tensorwire.tf  # noqa: F401

    run = mirror if options.mode == "mirrored" else run_session
    run(options)


def run_steps(options: argparse.Namespace, step: Callable[[int], Any]) -> list[Any]:
    """The result of each step."""
    values = []
    for number in range(options.steps):
        try:
            values.append(step(number))
        except tf.errors.UnavailableError as error:
            report(options.directory, "lost", values=type(error).__name__)
            os._exit(0)  # TensorFlow's destructors would wait for the other task
        Path(options.directory, "begun").touch()
    return values


def outcome(step: Callable[[int], Any], value: int) -> Any:
    """The result of the step, or the class of its error."""
    try:
        return step(value)
    except tf.errors.OpError as error:
        return type(error).__name__


def until_done(step: Callable[[int], Any], value: int) -> Any:
    """The result of the step, which is repeated while an earlier failure cancels it."""
    for _ in range(20):
        found = outcome(step, value)
        if not isinstance(found, str):
            break
    return found


def mirror(options: argparse.Namespace) -> None:
    said = {"rpc_layer": options.protocol} if options.protocol else {}
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(**said)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        resolver,
        tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        ),
    )
    index = resolver.task_id
    with strategy.scope():
        # All workers begin with the chief's value.
        large = tf.Variable(tf.fill([LARGE], float(index)))
        small = tf.Variable([float(index)] * 3)

    def gradients(number: Any) -> None:
        context = tf.distribute.get_replica_context()
        scale = tf.cast(number % 5 + 1, tf.float32) * (index + 1)
        own = [tf.range(float(LARGE)) % 7.0 * scale, tf.fill([3], scale)]
        for variable, total in zip((large, small), context.all_reduce("SUM", own), strict=True):
            variable.assign_sub(total)

    @tf.function
    def step(number: Any) -> Any:
        strategy.run(gradients, args=(number,))
        mine = strategy.run(lambda: tf.fill([index + 1], index + 1))
        return strategy.gather(mine, 0)

    steps = run_steps(options, lambda number: step(tf.constant(number)).numpy().tolist())
    values = {
        "large": [float(tf.reduce_sum(large)), *large[:14].numpy().tolist()],
        "small": small.numpy().tolist(),
        "gathered": steps,
    }
    report(options.directory, f"worker-{index}", values=values)


def run_session(options: argparse.Namespace) -> None:
    tf1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    job = config["task"]["type"]
    session_config = tf1.ConfigProto(operation_timeout_in_ms=60_000)
    session_config.experimental.collective_group_leader = "/job:chief/replica:0/task:0"
    said = {"protocol": options.protocol} if options.protocol else {}
    server = tf1.train.Server(config["cluster"], job, 0, config=session_config, **said)
    if job == "worker":
        keep_reporting(options.directory, "worker-0")
        server.join()
    number = tf1.placeholder(tf.float32, [])
    sums, received = [], []
    for place, task in enumerate(("chief", "worker")):
        with tf.device(f"/job:{task}/task:0/device:CPU:0"):
            for instance, size in enumerate((3, LARGE)):
                summed = tf.raw_ops.CollectiveReduce(
                    input=tf.fill([size], number * (place + 1)),
                    group_size=2,
                    group_key=1,
                    instance_key=instance,
                    merge_op="Add",
                    final_op="Id",
                    subdiv_offsets=[0],
                )
                sums.append(tf.stack([tf.reduce_min(summed), tf.reduce_max(summed)]))
            told = {"group_size": 2, "group_key": 1, "instance_key": 9, "shape": [4]}
            if place == 0:
                value = tf.raw_ops.CollectiveBcastSend(input=tf.fill([4], number + 0.5), **told)
            else:
                value = tf.raw_ops.CollectiveBcastRecv(T=tf.float32, **told)
            received.append(value)
    # Tensors that cross without a collective operation. On the worker, a large number is an error.
    with tf.device("/job:worker/task:0/device:CPU:0"):
        is_small = tf1.debugging.assert_less(number, LIMIT)
    with tf.device("/job:worker/task:0/device:CPU:0"), tf.control_dependencies([is_small]):
        checked = number * 2.0
    with tf.device("/job:chief/task:0/device:CPU:0"):
        received.append(checked + tf.zeros([2]))
    with tf1.Session(server.target, config=session_config) as session:

        def step(value: int) -> Any:
            found = session.run([sums, received], {number: value})
            return [[part.tolist() for part in parts] for parts in found]

        values = run_steps(options, step)
        if options.fails:
            values += [outcome(step, int(LIMIT)), *(until_done(step, value) for value in (1, 2))]
        report(options.directory, "chief-0", values=values)
        os._exit(0)  # TensorFlow's destructors would wait for the worker


if __name__ == "__main__":
    main()
