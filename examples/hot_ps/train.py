"""A model with most of its bytes in one embedding, trained by ps and workers as usual.

The script chooses no placement, so TensorFlow places variables on the ps in turn (round robin). Run
one process per task; TF_CONFIG names the task. compare.py runs it with `tensorwire run`. Each
worker prints a line of JSON after every REPORT_EVERY steps of the job.
"""

import json
import os
import time

import tensorflow as tf

import tensorwire.tf  # registers protocol "grpc++", and counts the traffic of each ps

tf1 = tf.compat.v1
tf1.disable_eager_execution()

WORDS, WIDTH, BATCH, WARM_UP = 200_000, 64, 8192, 20
REPORT_EVERY = int(os.environ.get("HOT_PS_REPORT_EVERY", "200"))
STEPS = int(os.environ.get("HOT_PS_STEPS", "1000"))

config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
server = tf1.train.Server(cluster, job_name=job, task_index=index, protocol="grpc++")
if job == "ps":
    server.join()

setter = tf1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")
with tf1.device(setter):
    words = tf.random.uniform([BATCH], 0, WORDS, tf.int64, seed=index)
    labels = tf.cast(words % 2, tf.float32)
    embedding = tf1.get_variable("embedding", [WORDS, WIDTH])
    hidden = tf.nn.embedding_lookup(embedding, words)
    for layer, units in enumerate([128, 64, 1]):
        kernel = tf1.get_variable(f"layer{layer}/kernel", [hidden.shape[1], units])
        bias = tf1.get_variable(f"layer{layer}/bias", [units], initializer=tf1.zeros_initializer())
        hidden = tf.matmul(tf.nn.relu(hidden) if layer else hidden, kernel) + bias
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, tf.squeeze(hidden, 1))
    step = tf1.train.get_or_create_global_step()
    optimizer = tf1.train.GradientDescentOptimizer(1.0)
    train = optimizer.minimize(tf.reduce_mean(losses), global_step=step)
    present = tf1.get_variable("present", [], tf.int32, tf1.zeros_initializer(), trainable=False)

come, missing = tf1.assign_add(present, 1), tf1.report_uninitialized_variables()


def moved():
    """Bytes to and from each ps so far, over shared memory or TCP."""
    total = [0] * len(cluster["ps"])
    for peer in tensorwire.tf.stats()["peers"]:
        if peer["peer"].startswith("/job:ps/"):
            number = int(peer["peer"].rpartition(":")[2])
            total[number] += peer["tx_bytes"] + peer["rx_bytes"]
            total[number] += peer["lent_bytes"] + peer["read_bytes"]
    return total


def steps_until(session, last):
    done = session.run(step)
    while done < last:
        _, done = session.run([train, step])
    return int(done)


filters = tf1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
with tf1.Session(server.target, config=filters) as session:
    if index == 0:
        session.run(tf1.global_variables_initializer())
    while session.run(missing).size:
        time.sleep(0.1)
    session.run(come)
    while session.run(present) < len(cluster["worker"]):  # measure all workers together
        time.sleep(0.1)
    first = steps_until(session, WARM_UP)
    while first < WARM_UP + STEPS:
        before, began = moved(), time.monotonic()
        done = steps_until(session, min(first + REPORT_EVERY, WARM_UP + STEPS))
        seconds = time.monotonic() - began
        told = {
            "steps_per_s": (done - first) / seconds,
            "bytes_per_ps": [b - a for a, b in zip(before, moved(), strict=True)],
        }
        print(json.dumps(told), flush=True)
        first = done
