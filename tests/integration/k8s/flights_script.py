"""Trains the flights model for some steps of all workers together: `SCRIPT DATA STEPS`.

DATA is a folder with the training examples, one file per worker, written by `examples.write`.
"""

import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

import tensorwire.tf
from tensorwire.bench.models import flights, training

tf1 = tf.compat.v1
tf1.disable_eager_execution()

config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
server = tf1.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

data, steps = Path(sys.argv[1]), int(sys.argv[2])
examples = data / f"train-{index}-of-{len(cluster['worker'])}.bin"
device = f"/job:worker/task:{index}"
with tf1.device(tf1.train.replica_device_setter(cluster=cluster, worker_device=device)):
    record = training.endless(tf, flights.MODEL, examples, 256)
    model = training.build(tf, flights.MODEL, record, 256)
    missing = tf1.report_uninitialized_variables()

filters = tf1.ConfigProto(device_filters=["/job:ps", device])
with tf1.Session(server.target, config=filters) as session:
    if index == 0:
        session.run(tf1.global_variables_initializer())
    while session.run(missing).size:
        time.sleep(0.2)
    done = 0
    while done < steps:
        loss, _, done = session.run([model.loss, model.train, model.global_step])
print(f"loss {loss:.3f} at step {done}, job token, {len(flights.COLUMNS)} columns")
print(f"{tensorwire.tf.stats()['tx_bytes']} bytes on grpc++", flush=True)
