"""Trains on the items of a work queue: `SCRIPT FOLDER`. Ends when all are done.

Notes each item under FOLDER, and works slowly until the file `hurry` exists there.
"""

import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

import tensorwire.tf

ITEMS = 200

tf1 = tf.compat.v1
tf1.disable_eager_execution()

config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
server = tf1.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

folder = Path(sys.argv[1])
device = f"/job:worker/task:{index}"
with tf1.device(tf1.train.replica_device_setter(cluster=cluster, worker_device=device)):
    step = tf1.train.get_or_create_global_step()
    queue = tensorwire.tf.WorkQueue([str(item) for item in range(ITEMS)])
    item = queue.take_item()
    receipt = tf1.placeholder(tf.int64, [])
    with tf.control_dependencies([tf1.assign_add(step, 1)]):
        done = queue.done(receipt)

with tf1.train.MonitoredTrainingSession(
    server.target, is_chief=index == 0, checkpoint_dir=str(folder / "checkpoints")
) as session:
    while not session.should_stop():
        text, taken = session.run([item.text, item.receipt])
        with (folder / f"worker-{index}").open("a") as notes:
            print(text.decode(), file=notes)
        if not (folder / "hurry").exists():
            time.sleep(0.5)
        session.run(done, {receipt: taken})
print("all items are done")
