"""A TF2 client that replaces its servers one by one, while those that are replaced live on.

usage: replaced_servers_script.py '{"protocol", "servers"}'
Runs a function on two of the four servers after each change, then one on a server that was away.
Prints the results as JSON.
"""

from __future__ import annotations

import json
import sys

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context

import tensorwire.tf  # noqa: F401
from tensorwire.bench.lab.ports import PortLease

CALLS = 3  # the first requests its tensors, the others have them pushed
DEVICES = [f"/job:worker/replica:0/task:{index}/device:CPU:0" for index in (1, 2)]


def main() -> None:
    given = json.loads(sys.argv[1])
    own = f"localhost:{PortLease().take()}"

    def server_def(*servers: int) -> tensorflow_server_pb2.ServerDef:
        made = tensorflow_server_pb2.ServerDef(
            job_name="worker", task_index=0, protocol=given["protocol"]
        )
        job = made.cluster.job.add(name="worker")
        for index, address in enumerate([own, *(given["servers"][each] for each in servers)]):
            job.tasks[index] = address
        return made

    context.set_server_def(server_def(0, 1))
    with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
        ones = tf.ones([2, 2])

    @tf.function
    def step(value: tf.Tensor) -> tf.Tensor:
        with tf.device(DEVICES[0]):
            product = tf.matmul(value, value)
        with tf.device(DEVICES[1]):
            added = product + value
        return added - value

    @tf.function
    def slow_step() -> tf.Tensor:
        product = tf.eye(700)
        for _ in tf.range(30):
            product = tf.matmul(product, product)
        return tf.reduce_sum(product[:8])

    results = []
    for servers in ((0, 1), (0, 2), (3, 2)):
        if results:
            context.update_server_def(server_def(*servers))
        for device in DEVICES * CALLS:
            with tf.device(device):
                results.append(float(tf.reduce_sum(step(ones))))

    # A server that is removed and added again knows the context by the same id. What the client
    # requests of it arrives before the server has made anything.
    context.update_server_def(server_def(3))
    context.update_server_def(server_def(3, 2))
    with context.execution_mode(context.ASYNC):
        for _ in range(CALLS):
            with tf.device(DEVICES[1]):
                results.append(float(slow_step()))
    print(f"RESULTS {json.dumps(results)}", flush=True)


if __name__ == "__main__":
    main()
