"""A TensorFlow 2 script whose function has parts on two tasks. Its argument is JSON: {"spec",
"protocol"}; the script is the "client" of the spec. It prints what the function returned."""

from __future__ import annotations

import json
import sys

import tensorflow as tf


def main() -> None:
    arguments = json.loads(sys.argv[1])
    cluster = tf.train.ClusterSpec(arguments["spec"])
    tf.config.experimental_connect_to_cluster(
        cluster, job_name="client", protocol=arguments["protocol"]
    )
    with tf.device("/job:ps/task:0"):
        weights = [tf.Variable([float(i), 1.0]) for i in range(10)]

    # Not inlined, so that its calls are in one step and run the same nodes at the same time.
    # They are iterations of one loop, so that one call instantiates the function for all: with
    # several calls TensorFlow instantiates one while it runs another, and its
    # EagerClusterFunctionLibraryRuntime then reads from a vector that has grown meanwhile.
    @tf.function(experimental_attributes={"_noinline": True})
    def total(scale: tf.Tensor) -> tf.Tensor:
        with tf.device("/job:ps/task:0"):
            read = [tf.identity(weight) for weight in weights]
        with tf.device("/job:worker/task:0"):
            scaled = [tf.cond(scale > 2.0, lambda w=w: w * scale, lambda w=w: w) for w in read]
        with tf.device("/job:ps/task:0"):
            return tf.add_n(scaled)

    @tf.function
    def totals() -> tf.Tensor:
        return tf.map_fn(total, tf.range(5.0), parallel_iterations=5)

    for _ in range(3):
        results = totals()
    print("RESULTS", json.dumps(results.numpy().tolist()))


if __name__ == "__main__":
    main()
