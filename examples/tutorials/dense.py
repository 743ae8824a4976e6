"""A model with four dense layers, which trains until it is stopped. TF_CONFIG names the task."""

import json
import os
from pathlib import Path

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
server = tf.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

here = f"/job:worker/task:{index}"
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=here)):
    hidden = tf.random.uniform([64, 512])
    for layer in range(4):
        hidden = tf.tanh(tf.matmul(hidden, tf.get_variable(f"layer{layer}", [512, 512])))
    loss = tf.reduce_mean(tf.square(hidden - 1.0))
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdagradOptimizer(0.01).minimize(loss, global_step=step)

own = tf.ConfigProto(device_filters=["/job:ps", here])
with tf.train.MonitoredTrainingSession(server.target, index == 0, config=own) as session:
    session.run(train)
    Path(f"worker-{index}.began").touch()
    while True:
        session.run(train)
