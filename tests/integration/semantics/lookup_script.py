"""A TensorFlow 2 script whose function on a worker looks up rows of a ps and trains them. Its
argument is JSON: {"spec", "protocol"}; the script is the "client" of the spec. It prints, as JSON,
the result of the function, the table's bytes at the end, and the applied rewrites."""

from __future__ import annotations

import json
import sys

import numpy as np
import tensorflow as tf

import tensorwire.tf


def main() -> None:
    arguments = json.loads(sys.argv[1])
    cluster = tf.train.ClusterSpec(arguments["spec"])
    tf.config.experimental_connect_to_cluster(
        cluster, job_name="client", protocol=arguments["protocol"]
    )
    draw = np.random.default_rng(8)
    with tf.device("/job:ps/task:0"):
        table = tf.Variable(draw.standard_normal([300, 4]).astype(np.float32))
        slots = tf.Variable(tf.fill([300, 4], 0.1))

    @tf.function
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.device("/job:worker/task:0"):
            ids = tf.identity(ids)
        with tf.GradientTape() as tape:
            with tf.device("/job:ps/task:0"):
                rows = tf.gather(table, ids)
            with tf.device("/job:worker/task:0"):
                loss = tf.reduce_sum(tf.sin(rows))
        with tf.device("/job:worker/task:0"):
            gradient = tape.gradient(loss, table)
        with tf.device("/job:ps/task:0"):
            unique, numbers = tf.unique(gradient.indices)
            summed = tf.math.unsorted_segment_sum(gradient.values, numbers, tf.shape(unique)[0])
            tf.raw_ops.ResourceSparseApplyAdagrad(
                var=table.handle, accum=slots.handle, lr=0.1, grad=summed, indices=unique
            )
        return loss

    losses = [step(tf.constant(draw.zipf(1.3, 60) % 30)) for _ in range(4)]
    values = [np.asarray(v.numpy()).tobytes().hex() for v in (*losses, table, slots)]
    rewrites = tensorwire.tf.stats()["rewrites"]
    print("RESULTS", json.dumps({"values": values, "rewrites": rewrites}))


if __name__ == "__main__":
    main()
