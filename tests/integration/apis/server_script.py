"""Trains with tf.compat.v1.train.Server, replica_device_setter and MonitoredTrainingSession.

A typical user script: TF_CONFIG names the task, and --protocol, if given, the protocol.

--mode async: each worker subtracts gradients that are integers and do not depend on the variables,
so that the result is exact in any order. --mode sync: SyncReplicasOptimizer. Both workers have the
same batch at the same global step, so the order of their gradients does not matter.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from reporting import await_file, report

tf1 = tf.compat.v1

COLUMNS, ROWS, WORDS = 30, 64, 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol")
    parser.add_argument("--directory", required=True)
    parser.add_argument("--mode", choices=["async", "sync"], required=True)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    if options.protocol == "grpc++":
        import tensorwire.tf  # noqa: F401

    tf1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    spec, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
    said = {"protocol": options.protocol} if options.protocol else {}
    server = tf1.train.Server(spec, job_name=job, task_index=index, **said)
    if job == "ps":
        server.join()
    train = train_async if options.mode == "async" else train_sync
    setter = tf1.train.replica_device_setter(
        cluster=spec, worker_device=f"/job:worker/task:{index}"
    )
    with tf1.device(setter):
        train(server, index, options)


def make_model() -> tuple[Any, Any]:
    """An embedding, wide weights and a bias, on two ps: (variables, a function to the output)."""
    initial = tf1.random_uniform_initializer(-1, 1, seed=7)
    embedding = tf1.get_variable("embedding", [WORDS, 4], initializer=initial)
    wide = tf1.get_variable("wide", [COLUMNS, 1], initializer=initial)
    deep = tf1.get_variable("deep", [4, 1], initializer=initial)
    bias = tf1.get_variable("bias", [1], initializer=tf1.zeros_initializer())

    def output(words: Any, columns: Any) -> Any:
        looked_up = tf.nn.embedding_lookup(embedding, words)
        return tf.matmul(columns, wide) + tf.matmul(looked_up, deep) + bias

    return [embedding, wide, deep, bias], output


def train_async(server: Any, index: int, options: argparse.Namespace) -> None:
    shapes = {"dense": [500, 3], "sparse": [WORDS, 8], "scalar": []}
    variables = {
        name: tf1.get_variable(name, shape, initializer=tf1.zeros_initializer())
        for name, shape in shapes.items()
    }
    finished = tf1.get_variable("finished", [], tf.int32, tf1.zeros_initializer())
    global_step = tf1.train.get_or_create_global_step()
    local_step = tf1.placeholder(tf.int32, [])
    # Integers that differ by worker, step and position.
    scale = tf.cast(local_step * (index + 1) % 7 + 1, tf.float32)
    pattern = tf.reshape(tf.range(1500.0) % 13.0, [500, 3])
    words = (tf.range(40) * 17 + local_step * 3 + index) % WORDS
    looked_up = tf.nn.embedding_lookup(variables["sparse"], words)
    loss = (
        tf.reduce_sum(variables["dense"] * pattern * scale)
        + tf.reduce_sum(looked_up) * scale
        + variables["scalar"] * 3.0
    )
    optimizer = tf1.train.GradientDescentOptimizer(1.0)
    train_op = optimizer.minimize(loss, global_step=global_step)
    finish = finished.assign_add(1, use_locking=True)
    directory = Path(options.directory)
    if index > 0:
        await_file(directory / "initialized")
    with tf1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=index == 0,
        checkpoint_dir=str(directory / "checkpoints") if index == 0 else None,
        save_checkpoint_steps=20,
        save_summaries_steps=None,
        save_summaries_secs=None,
    ) as session:
        if index == 0:
            (directory / "initialized").touch()
        for step in range(options.steps):
            session.run(train_op, {local_step: step})
        session.run(finish)
        if index == 0:
            deadline = time.monotonic() + 120
            workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
            while session.run(finished) < workers:
                if time.monotonic() > deadline:
                    raise TimeoutError("another worker did not finish")
                time.sleep(0.05)
        final = session.run({**variables, "global_step": global_step})
    values = {name: np.asarray(value).tolist() for name, value in final.items()}
    report(options.directory, f"worker-{index}", values=values)


class ReadAtEnd(tf1.train.SessionRunHook):  # type: ignore[name-defined]
    """Reads variables when the last step is done."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors
        self.values: Any = None

    def end(self, session: Any) -> None:
        self.values = [value.tolist() for value in session.run(self._tensors)]


def train_sync(server: Any, index: int, options: argparse.Namespace) -> None:
    variables, output = make_model()
    global_step = tf1.train.get_or_create_global_step()
    seeds = tf.stack([tf.cast(global_step, tf.int32), 11])
    words = tf.random.stateless_uniform([ROWS], seeds, 0, WORDS, tf.int32)
    columns = tf.random.stateless_normal([ROWS, COLUMNS], seeds)
    target = tf.reduce_sum(columns[:, :5], 1, keepdims=True)
    loss = tf.reduce_mean(tf.square(output(words, columns) - target))
    optimizer = tf1.train.SyncReplicasOptimizer(
        tf1.train.AdamOptimizer(0.05), replicas_to_aggregate=2, total_num_replicas=2
    )
    train_op = optimizer.minimize(loss, global_step=global_step)
    read = ReadAtEnd([global_step.read_value(), *[v.read_value() for v in variables]])
    hooks = [
        optimizer.make_session_run_hook(index == 0, num_tokens=0),
        tf1.train.StopAtStepHook(last_step=options.steps),
    ]
    directory = Path(options.directory)
    if index > 0:
        await_file(directory / "initialized")
    losses = []
    with tf1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=index == 0,
        checkpoint_dir=str(directory / "checkpoints") if index == 0 else None,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        hooks=[read, *hooks],
        stop_grace_period_secs=2,  # its queue runner blocks until the session is closed
    ) as session:
        if index == 0:
            (directory / "initialized").touch()
        while not session.should_stop():
            losses.append(float(session.run([loss, train_op])[0]))
        if index == 0:
            # This worker's queue runner also serves the other worker's last step.
            await_file(directory / "worker-1.last")
        else:
            (directory / "worker-1.last").touch()
    report(
        options.directory,
        f"worker-{index}",
        values=read.values,
        loss={"first": losses[0], "last": losses[-1]},
    )


if __name__ == "__main__":
    main()
