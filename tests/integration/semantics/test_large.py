"""Tensors over 2 GB: gRPC cannot carry them, nor can a protobuf."""

from __future__ import annotations

import json
import sys
from typing import Any

import psutil
import pytest
import tensorflow as tf

from .support import TensorFlowCluster, results_of

NEEDED_BYTES = 11 * 10**9

pytestmark = [
    pytest.mark.timeout(480, method="thread", func_only=True),
    # Two of them at once, on both TensorFlows, would need twice the memory.
    pytest.mark.newest,
]

ROW = 1_100_000
ROWS = 2_000  # 2.2 GB of bytes
# On a busy machine, 2.2 GB are slow to make and to check.
STEP_TIMEOUT_MS = 300_000

COPY = """
import json, os, sys
import tensorflow as tf
import tensorwire.tf
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec(json.loads(sys.argv[1])), job_name="chief", protocol="grpc++"
)
large = tf.zeros([2_200_000_000], tf.uint8)
with tf.device("/job:worker/task:0"):
    try:
        tf.identity(large)
    except tf.errors.OpError as error:
        print("RESULTS", json.dumps([type(error).__name__, error.message]))
    assert tf.reduce_sum(tf.ones([5])).numpy() == 5
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.usefixtures("plugin")
def test_an_eager_copy_over_2_gb_fails_as_on_grpc_and_is_no_lost_worker() -> None:
    if psutil.virtual_memory().available < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES / 1e9:.0f} GB of free memory")
    with TensorFlowCluster("grpc++", {"worker": 1}) as cluster:
        cluster.start_all()
        name, message = results_of([sys.executable, "-c", COPY, json.dumps(cluster.spec)], 400)
    assert name == "InternalError"  # a coordinator would repeat it after AbortedError
    assert "Protobuf is too large to be serialized" in message
    assert "remote target" not in message


@pytest.mark.usefixtures("plugin")
def test_a_tensor_over_2_gb_arrives_whole() -> None:
    if psutil.virtual_memory().available < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES / 1e9:.0f} GB of free memory")

    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            row = tf.cast(tf.range(ROW) % 251, tf.uint8)
            rows = tf.tile(row[tf.newaxis, :], [ROWS, 1])
        with tf.device("/job:worker/task:0"):
            wrong = [
                tf.math.count_nonzero(tf.not_equal(rows[i : i + 200], row))
                for i in range(0, ROWS, 200)
            ]
            return tf.shape(rows), tf.add_n(wrong), rows[-1, -5:]

    # A separate cluster, which frees the memory at its end.
    with TensorFlowCluster("grpc++", {"ps": 1, "worker": 1}) as cluster:
        cluster.start_all()
        shape, wrong, last = cluster.run(build, step_timeout_ms=STEP_TIMEOUT_MS)
        assert shape.tolist() == [ROWS, ROW]
        assert wrong == 0
        assert last.tolist() == [i % 251 for i in range(ROW - 5, ROW)]
        stats = cluster.stats("worker:0")
        assert stats["rx_bytes"] + stats["read_bytes"] > 2**31
