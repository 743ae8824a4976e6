"""`tensorwire run --protocol grpc++`: unchanged scripts train on grpc++.

Each script starts its own tasks, as Python processes or as servers in its own process, so one
command runs a whole job on grpc++. This is checked by the plug-in's counters at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorwire.bench.lab.ports import PortLease

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.timeout(300, method="thread")

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])

# Begin and end of every script below: free ports, and the plug-in's counters.
COMMON = """
import json, os, subprocess, sys
import tensorflow as tf

def free_address(free=iter(os.environ["FREE_PORTS"].split())):
    return "127.0.0.1:" + next(free)

def finish(**result):
    loader = sys.modules.get("tensorwire.plugin.loader")
    stats = loader.stats() if loader else {}
    print("RESULT " + json.dumps({**result, **stats}), flush=True)
"""

SERVERS = (
    COMMON
    + """
tf1 = tf.compat.v1
spec = {"ps": [free_address()], "worker": [free_address()]}
ps = tf1.train.Server(spec, job_name="ps", task_index=0, **PS_KEYWORDS)
worker = tf.distribute.Server(spec, job_name="worker", task_index=0, **WORKER_KEYWORDS)
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        weights = tf1.get_variable("w", [1000], initializer=tf1.ones_initializer())
    with tf.device("/job:worker/task:0"):
        total = tf.reduce_sum(weights * 2.0)
    with tf1.Session(worker.target) as session:
        session.run(tf1.global_variables_initializer())
        finish(total=float(session.run(total)), said=worker.server_def.protocol)
"""
)

ESTIMATOR = (
    COMMON
    + """
import tempfile
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)

def input_fn():
    data = {"x": [[1.0], [2.0], [3.0], [4.0]]}, [[2.0], [4.0], [6.0], [8.0]]
    return tf.data.Dataset.from_tensor_slices(data).repeat().batch(4)

def main():
    config = tf.estimator.RunConfig(model_dir=os.environ["MODEL_DIR"], save_checkpoints_steps=50)
    estimator = tf.estimator.LinearRegressor(
        [tf.feature_column.numeric_column("x")], config=config)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=50),
        tf.estimator.EvalSpec(input_fn, steps=1),
    )

if "TF_CONFIG" in os.environ:
    main()
else:
    cluster = {"chief": [free_address()], "ps": [free_address()]}
    def task(job):
        return json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MODEL_DIR"] = folder
        ps = subprocess.Popen(
            [sys.executable, __file__], env={**os.environ, "TF_CONFIG": task("ps")})
        try:
            os.environ["TF_CONFIG"] = task("chief")
            main()
        finally:
            ps.kill()
            ps.wait()
        finish(step=int(tf.train.load_variable(folder, "global_step")))
"""
)


def run(folder: Path, code: str, *options: str) -> dict[str, Any]:
    """The script's result under ``tensorwire run OPTIONS``, with the plug-in's counters."""
    script = folder / "train.py"
    script.write_text(code)
    lease = PortLease()
    ports = {"FREE_PORTS": " ".join(str(lease.take()) for _ in range(3))}
    done = subprocess.run(
        [sys.executable, "-m", "tensorwire.cli.main", "run", *options, str(script)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", **ports},
    )
    lease.release()
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stderr
    assert results, done.stderr
    found: dict[str, Any] = json.loads(results[-1].removeprefix("RESULT "))
    return found


def servers(ps: str = "", worker: str = "") -> str:
    """A script whose servers say this of their protocol."""
    return SERVERS.replace("**PS_KEYWORDS", ps).replace("**WORKER_KEYWORDS", worker)


@pytest.mark.core
def test_servers_run_on_the_named_protocol_whatever_the_script_says(tmp_path: Path) -> None:
    result = run(tmp_path, servers(worker='protocol="grpc"'), "--protocol", "grpc++")
    assert result["total"] == 2000.0
    assert result["said"] == "grpc++"
    assert result["rx_bytes"] > 4000  # the variable went over the engine


@pytest.mark.parametrize("protocol", ["grpc", "grpc++"])
def test_device_filters_let_a_session_begin_without_the_other_workers(
    protocol: str, tmp_path: Path
) -> None:
    code = servers().replace('"worker": [', '"worker": [free_address(), ')
    code = code.replace('job_name="worker", task_index=0', 'job_name="worker", task_index=1')
    code = code.replace("/job:worker/task:0", "/job:worker/task:1")
    result = run(tmp_path, code, "--protocol", protocol, "--device-filters", "auto")
    assert result["total"] == 2000.0


def test_without_a_protocol_the_script_keeps_its_own(tmp_path: Path) -> None:
    result = run(tmp_path, servers())
    assert result["said"] == "grpc"
    assert result["rx_bytes"] == 0


def test_a_script_on_grpcpp_goes_back_to_grpc_when_told(tmp_path: Path) -> None:
    said = 'protocol="grpc++"'
    result = run(tmp_path, servers(said, said), "--protocol", "grpc")
    assert (result["said"], result["rx_bytes"]) == ("grpc", 0)


@pytest.mark.skipif(VERSION > (2, 15), reason="tf.estimator is in TensorFlow up to 2.15")
def test_an_estimator_and_its_tasks_run_on_the_named_protocol(tmp_path: Path) -> None:
    result = run(tmp_path, ESTIMATOR, "--protocol", "grpc++")
    assert result["step"] == 50
    assert result["recv_tensors"] >= 50  # one a step at least
