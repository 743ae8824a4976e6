"""A TF2 chief, to whose cluster a worker is added while it runs.

usage: joining_chief.py '{"spec", "line", "map"}'     (the worker's line in the endpoint map)
Prints the result of the worker.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context

import tensorwire.tf  # noqa: F401


def main() -> None:
    told = json.loads(sys.argv[1])
    before = {job: hosts for job, hosts in told["spec"].items() if job != "worker"}
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(before),
        job_name="chief",
        task_index=0,
        protocol="grpc++",
        make_master_device_default=False,
    )
    with tf.device("/job:ps/task:0"):
        made = tf.constant(20.0) + 1.0
    joined = tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec(told["spec"]).as_cluster_def(),
        job_name="chief",
        task_index=0,
        protocol="grpc++",
        default_session_config=context.context().config,
    )
    with Path(told["map"]).open("a") as file:
        file.write(told["line"] + "\n")
    context.context().update_server_def(joined)
    with tf.device("/job:worker/task:0"):
        print(f"result: {float(made * 2.0)}")


if __name__ == "__main__":
    main()
