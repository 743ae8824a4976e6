"""Tasks of one host exchange large tensors through memory, unless they are told not to."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# A ps and a worker in one process, so that its figures are those of both ends.
SCRIPT = """
import json
import numpy as np
import tensorflow.compat.v1 as tf
import tensorwire.tf
from tensorwire.lab.ports import PortLease

lease = PortLease()
addresses = {job: [f"127.0.0.1:{lease.take()}"] for job in ("ps", "worker")}
servers = {job: tf.train.Server(addresses, job, 0, protocol="grpc++") for job in addresses}
with tf.Graph().as_default():
    with tf.device("/job:worker/task:0"):
        ours = tf.random.uniform([1 << 20], seed=1) + 1.0
        there = tf.reduce_sum(ours)
    with tf.device("/job:ps/task:0"):
        kept = tf.get_variable("kept", [1 << 20], initializer=tf.zeros_initializer())
        assign = tf.assign(kept, ours)
        here = tf.reduce_sum(assign)
    with tf.Session(servers["worker"].target) as session:
        session.run(tf.global_variables_initializer())
        sums = [session.run([there, here]) for _ in range(6)]
figures = [tensorwire.tf.stats()[name] for name in ("lent_bytes", "read_bytes", "tx_bytes")]
print(json.dumps([sums, *figures], default=float))
"""
TENSOR_BYTES = 4 << 20


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_large_tensors_go_the_way_they_are_told(transport: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "TENSORWIRE_TRANSPORT": transport, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    sums, lent, read, sent = json.loads(done.stdout.splitlines()[-1])
    for there, here in sums:
        assert there == pytest.approx(here, rel=1e-6)
    if transport == "tcp":
        assert (lent, read) == (0, 0)
        assert sent > 6 * TENSOR_BYTES
    else:
        assert lent == read == 6 * TENSOR_BYTES
        assert sent < TENSOR_BYTES
