"""A linear model with TensorFlow 2's ParameterServerStrategy on grpc++.

Run one process per task; TF_CONFIG names the task. The task of type "chief" schedules the steps:

    TF_CONFIG='{"cluster": {"chief": ["127.0.0.1:4001"], "ps": ["127.0.0.1:4002"],
                "worker": ["127.0.0.1:4003"]}, "task": {"type": "ps", "index": 0}}' \\
        python examples/train_strategy.py
"""

import os
import sys

import tensorflow as tf

import tensorwire.tf  # noqa: F401 - registers protocol "grpc++"

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc++")
if resolver.task_type in ("ps", "worker"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc++"
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros([100, 1]))


@tf.function
def step():
    x = tf.random.normal([64, 100])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - tf.reduce_sum(x, 1, keepdims=True)))
    weights.assign_sub(0.05 * tape.gradient(loss, weights))
    return loss


losses = [coordinator.schedule(step) for _ in range(300)]
coordinator.join()
print(f"loss {losses[-1].fetch():.4f}")
sys.stdout.flush()
os._exit(0)  # the servers run until they are stopped; a normal exit would wait for them
