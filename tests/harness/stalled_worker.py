"""A task of a job whose worker completes no step for the given REASON, or has finished.

usage: stalled_worker.py SPEC JOB INDEX REASON FILE   (FILE is created when the worker stalls)
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

import tensorwire.tf  # noqa: F401 - for grpc++


def wait_for_ever(value: Any = None) -> Any:
    threading.Event().wait()
    return value


def main(spec: dict[str, list[str]], job: str, index: int, reason: str, there: Path) -> None:
    tf.disable_eager_execution()
    server = tf.train.Server(spec, job, index, protocol="grpc++")
    if job == "ps":
        server.join()
    own = f"/job:worker/task:{index}"
    with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=own)):
        table = tf.get_variable("table", [1000])
        value = table + 1.0
        if reason == "recv":
            with tf.device("/job:ps/task:0"):
                token = tf.FIFOQueue(9, [tf.float32], [[]], shared_name="q").dequeue(name="token")
            value += token
        if reason == "step":
            value = tf.numpy_function(wait_for_ever, [value], tf.float32)
            value.set_shape([1000])
        train = table.assign_add(value * 0.0).op
    if reason in ("recv", "step", "no session", "initialization"):
        there.touch()
    config = tf.ConfigProto(device_filters=["/job:ps", own])
    with tf.train.MonitoredTrainingSession(server.target, index == 0, config=config) as session:
        for _ in range(20):
            session.run(train)
        if reason == "between steps":
            there.touch()
            wait_for_ever()
    there.touch()
    wait_for_ever()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
