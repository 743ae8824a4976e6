"""A model with most of its bytes in one embedding; ps and workers train it until they are ended.

`tensorwire k8s compare` trains it if no --script is named. Such an embedding on one ps overloaded
one of five ps in the published test. The file is stored with the job. It chooses no placement and
runs as one process per task, as a user's script would; TF_CONFIG names the task.
"""

import itertools
import json
import os
import time

import tensorflow as tf

WORDS, WIDTH, BATCH = 200_000, 64, 2048
SAY_EVERY_S = 2.0

tf1 = tf.compat.v1
tf1.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
server = tf1.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

setter = tf1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")
with tf1.device(setter):
    words = tf.random.uniform([BATCH], 0, WORDS, tf.int64, seed=index)
    labels = tf.cast(words % 2, tf.float32)
    embedding = tf1.get_variable("embedding", [WORDS, WIDTH])
    hidden = tf.nn.embedding_lookup(embedding, words)
    for layer, units in enumerate([64, 32, 1]):
        kernel = tf1.get_variable(f"layer{layer}/kernel", [hidden.shape[1], units])
        bias = tf1.get_variable(f"layer{layer}/bias", [units], initializer=tf1.zeros_initializer())
        hidden = tf.matmul(tf.nn.relu(hidden) if layer else hidden, kernel) + bias
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, tf.squeeze(hidden, 1))
    step = tf1.train.get_or_create_global_step()
    optimizer = tf1.train.GradientDescentOptimizer(1.0)
    train = optimizer.minimize(tf.reduce_mean(losses), global_step=step)

missing, initialize = tf1.report_uninitialized_variables(), tf1.global_variables_initializer()
filters = tf1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
with tf1.Session(server.target, config=filters) as session:
    if index == 0:
        session.run(initialize)
    while session.run(missing).size:
        time.sleep(0.2)
    said, first = time.monotonic(), session.run(step)
    for _ in itertools.count():
        _, done = session.run([train, step])
        seconds = time.monotonic() - said
        if seconds >= SAY_EVERY_S:  # in the format of TensorFlow's hook
            print(f"global_step/sec: {(done - first) / seconds:.4g}", flush=True)
            said, first = time.monotonic(), done
