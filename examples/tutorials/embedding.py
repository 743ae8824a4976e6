"""A model with one large embedding, whose place it does not say. TF_CONFIG names the task."""

import json
import os
import time

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
server = tf.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

with tf.device(tf.train.replica_device_setter(cluster=cluster)):
    words = tf.random.uniform([4096], 0, 100_000, tf.int64)
    rows = tf.nn.embedding_lookup(tf.get_variable("embedding", [100_000, 64]), words)
    hidden = tf.nn.relu(tf.matmul(rows, tf.get_variable("hidden", [64, 64])))
    output = tf.matmul(hidden, tf.get_variable("output", [64, 1]))
    loss = tf.reduce_mean(tf.square(output - 1.0))
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)

stop = tf.train.StopAtStepHook(num_steps=int(os.environ.get("STEPS", "200")))
with tf.train.MonitoredTrainingSession(server.target, index == 0, hooks=[stop]) as session:
    session.run(train)
    began = time.time()
    while not session.should_stop():
        done = session.run([step, train])[0]
print(f"{done / (time.time() - began):.0f} steps a second")
