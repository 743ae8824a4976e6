"""Trains on items: a fixed share of them, or with QUEUE=1 those of a WorkQueue. TF_CONFIG names the
task. The last worker is three times slower than the others.
"""

import json
import os
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

import tensorwire.tf

tf.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
workers = len(cluster["worker"])
server = tf.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

items = [f"{number}" for number in range(int(os.environ.get("ITEMS", "90")))]


def batches_of(item):  # five; of a file in a real job
    return tf.data.Dataset.range(5).map(lambda _: tf.random.uniform([64, 100]))


here = f"/job:worker/task:{index}"
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=here)):
    if "QUEUE" in os.environ:
        queue = tensorwire.tf.WorkQueue(items)
        data = queue.dataset(batches_of)
    else:
        data = tf.data.Dataset.from_tensor_slices(items[index::workers]).flat_map(batches_of)
    iterator = tf.data.make_initializable_iterator(data)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    batch, *receipt = tf.nest.flatten(iterator.get_next())
    weights = tf.get_variable("weights", [100, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(batch, weights) - 1.0))
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    if receipt:
        with tf.control_dependencies([train]):
            train = queue.done(receipt[0])

own = tf.ConfigProto(device_filters=["/job:ps", here])
with tf.train.MonitoredTrainingSession(server.target, index == 0, config=own) as session:
    Path(f"worker-{index}.began").touch()
    while len(list(Path().glob("worker-*.began"))) < workers:
        time.sleep(0.1)
    steps, at = 0, time.monotonic()
    while not session.should_stop():
        session.run(train)
        steps += 1
        took = time.monotonic() - at
        time.sleep(0.15 if index == workers - 1 else 0.05)
print(f"worker:{index} took {steps} steps in {took:.0f} s")
