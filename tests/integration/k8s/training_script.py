"""Trains a linear model with checkpoints until a file exists: `SCRIPT CHECKPOINTS FILE`."""

import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

import tensorwire.tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()

config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
server = tf1.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

checkpoints, enough = sys.argv[1], Path(sys.argv[2])
with tf1.device(tf1.train.replica_device_setter(cluster=cluster)):
    weights = tf1.get_variable("weights", [100, 1], initializer=tf1.zeros_initializer())
    x = tf.random.normal([64, 100])
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - tf.reduce_sum(x, 1, keepdims=True)))
    step = tf1.train.get_or_create_global_step()
    train = tf1.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=step)
    uninitialized = tf1.report_uninitialized_variables()

if index == 0:
    session = tf1.train.MonitoredTrainingSession(
        server.target,
        checkpoint_dir=checkpoints,
        save_checkpoint_steps=20,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    )
else:
    # MonitoredTrainingSession would wait for the first worker in steps of 30 s.
    session = tf1.Session(server.target)
    while session.run(uninitialized).size:
        time.sleep(0.2)

while not enough.exists():
    done, last_loss, _ = session.run([step, loss, train])
    print(f"step {done}", flush=True)
    time.sleep(0.01)
print(f"trained to a loss of {last_loss:.3f}, {tensorwire.tf.stats()['tx_bytes']} bytes on grpc++")
