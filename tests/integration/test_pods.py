"""Tasks in pods of one node. Each has a network, a mount and a process namespace of its own, and
all see one directory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tensorwire.bench.lab import HostSettings, Lab, LabSettings, LocalCluster

pytest.importorskip("tensorflow")
pytest.importorskip("pyroute2")

MB = 10
READS = 5

TASK = """
import json, sys
import tensorflow as tf
import tensorwire.tf

tf1 = tf.compat.v1
spec, job, mb, reads = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
server = tf1.train.Server(spec, job_name=job, task_index=0, protocol="grpc++")
if job == "ps":
    server.join()
with tf.Graph().as_default():
    with tf1.device("/job:ps/task:0"):
        value = tf1.get_variable("value", [mb * 250_000], initializer=tf1.ones_initializer())
    with tf1.device("/job:worker/task:0"):
        total = tf.reduce_sum(value)
    with tf1.Session(server.target) as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(reads):
            assert session.run(total) == mb * 250_000
peers = tensorwire.tf.stats()["peers"]
print(json.dumps({peer["peer"]: peer["read_bytes"] for peer in peers}))
"""


@pytest.mark.newest
@pytest.mark.usefixtures("plugin")
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces take root")
@pytest.mark.parametrize("shares", [True, False])
def test_tensors_cross_between_pods_through_memory_where_they_share_a_directory(
    tmp_path: Path, shares: bool
) -> None:
    directory = tmp_path / "host"
    directory.mkdir()
    with Lab(LabSettings.alike(2, HostSettings(rate_bits_per_s=1e9))) as lab:
        assert lab.has_network, lab.notes
        jobs = {"ps": [lab.hosts[0]], "worker": [lab.hosts[1]]}
        with LocalCluster({"ps": 1, "worker": 1}, jobs) as cluster:
            pod = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
            script = [sys.executable, "-c", TASK, json.dumps(cluster.spec)]
            env = {"TENSORWIRE_HOST_DIR": str(directory) if shares else ""}
            output = tmp_path / "read"
            counts = [str(MB), str(READS)]
            cluster.start("ps", 0, [*pod, *script, "ps", *counts], env)
            worker = cluster.start("worker", 0, [*pod, *script, "worker", *counts], env, output)
            cluster.wait([worker], timeout_s=120)

    read_bytes = json.loads(output.read_text())
    expected = READS * MB * 1_000_000 if shares else 0
    assert sum(read_bytes.values()) == expected, read_bytes
