"""A linear model with ps and workers, with TensorFlow 1's distributed API on grpc++.

Run one process per task; TF_CONFIG names the task:

    export CLUSTER='"cluster": {"ps": ["127.0.0.1:4001"], "worker": ["127.0.0.1:4002"]}'
    TF_CONFIG="{$CLUSTER, \\"task\\": {\\"type\\": \\"ps\\", \\"index\\": 0}}" \\
        python examples/train_server.py &
    TF_CONFIG="{$CLUSTER, \\"task\\": {\\"type\\": \\"worker\\", \\"index\\": 0}}" \\
        python examples/train_server.py
    kill %1
"""

import json
import os

import tensorflow as tf

import tensorwire.tf  # registers protocol "grpc++"

tf1 = tf.compat.v1
tf1.disable_eager_execution()

config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
server = tf1.train.Server(cluster, job_name=job, task_index=index, protocol="grpc++")
if job == "ps":
    server.join()

with tf1.device(tf1.train.replica_device_setter(cluster=cluster)):
    weights = tf1.get_variable("weights", [100, 1], initializer=tf1.zeros_initializer())
    x = tf.random.normal([64, 100])
    y = tf.reduce_sum(x, axis=1, keepdims=True)  # training should make every weight 1
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
    step = tf1.train.get_or_create_global_step()
    train = tf1.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=step)

stop = tf1.train.StopAtStepHook(last_step=int(os.environ.get("STEPS") or 300))
# Without filters, a worker waits for all others, including those that have ended.
filters = tf1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
with tf1.train.MonitoredTrainingSession(
    server.target, index == 0, hooks=[stop], config=filters
) as session:
    while not session.should_stop():
        _, last_loss = session.run([train, loss])

print(f"loss {last_loss:.4f}; sent {tensorwire.tf.stats()['tx_bytes']} bytes on grpc++")
