"""A task that is replaced by another process while it still runs and is connected."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from .support import TensorFlowCluster, results_of, session_config, tf1

pytestmark = pytest.mark.timeout(180, func_only=True)

STEPS = 5
STEP_TIMEOUT_MS = 60_000


def _read_at_the_worker() -> tuple[tf.Graph, tf.Tensor, tf.Operation]:
    """A graph whose step reads a variable of the ps. The ps knows only the first worker, and could
    not receive from another one.
    """
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            variable = tf1.get_variable("replaced", [4], initializer=tf1.ones_initializer())
        with tf.device("/job:worker/task:0"):
            read = tf.identity(variable)
        return graph, read, tf1.variables_initializer([variable])


def test_a_worker_that_replaces_another_trains_beside_it(protocol: str) -> None:
    with TensorFlowCluster(protocol, {"ps": 1, "worker": 2}) as cluster:
        first_spec = {"ps": cluster.spec["ps"], "worker": cluster.spec["worker"][:1]}
        new_spec = {"ps": cluster.spec["ps"], "worker": cluster.spec["worker"][1:]}
        cluster.ready(
            cluster.begin("ps", 0, spec=first_spec),
            cluster.begin("worker", 0, spec=first_spec),
            cluster.begin("worker", 1, spec=new_spec, serves=0),
        )
        graph, step, initialize = _read_at_the_worker()
        config = session_config(STEP_TIMEOUT_MS)
        with tf1.Session(cluster.target("worker:0"), graph, config) as first:
            first.run(initialize)
            for _ in range(STEPS):
                first.run(step)
            # The first worker keeps its connection to the ps.
            with tf1.Session(cluster.target("worker:1"), graph, config) as replacement:
                for _ in range(STEPS):
                    assert replacement.run(step).tolist() == [1.0] * 4


def test_functions_run_on_servers_that_replace_others_in_one_context(
    plugin: None, protocol: str
) -> None:
    with TensorFlowCluster(protocol, {"local": 4}) as cluster:
        cluster.ready(
            *[
                cluster.begin("local", index, spec={"local": [address]}, serves=0)
                for index, address in enumerate(cluster.spec["local"])
            ]
        )
        told = json.dumps({"protocol": protocol, "servers": cluster.spec["local"]})
        script = Path(__file__).with_name("replaced_servers_script.py")
        assert results_of([sys.executable, str(script), told]) == [8.0] * 21
