"""Servers that get their names from a session: ConfigProto.cluster_def ("ClusterSpec propagation").

Each server is started as task 0 of a job of its own, and knows nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import cluster_pb2

from .support import PROTOCOLS, TensorFlowCluster, session_config, tf1

pytestmark = [
    pytest.mark.core,
    pytest.mark.timeout(120, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]

SIZE = 50_000
STEPS = 5  # the first requests its tensors, the others have them pushed


@pytest.fixture(scope="module", params=PROTOCOLS)
def servers(request: pytest.FixtureRequest) -> Iterator[TensorFlowCluster]:
    """Three servers that nobody knows."""
    with TensorFlowCluster(request.param, {"local": 3}) as cluster:
        cluster.ready(
            *[
                cluster.begin("local", index, spec={"local": [address]}, serves=0)
                for index, address in enumerate(cluster.spec["local"])
            ]
        )
        yield cluster


class Job:
    """A variable on the ps that worker:1 adds 1 to, with the tasks named by index of the server."""

    def __init__(
        self,
        servers: TensorFlowCluster,
        name: str,
        tasks: Mapping[str, Sequence[int]],
        master: int,
        *,
        shared: bool = False,
    ) -> None:
        cluster = cluster_pb2.ClusterDef()
        for job, indices in tasks.items():
            made = cluster.job.add(name=job)
            for index, server in enumerate(indices):
                made.tasks[index] = servers.spec["local"][server]
        config = session_config(share_session_state_in_clusterspec_propagation=shared)
        config.cluster_def.CopyFrom(cluster)
        with tf.Graph().as_default() as graph:
            with tf.device("/job:ps/task:0"):
                weights = tf1.get_variable(name, [SIZE], initializer=tf1.zeros_initializer())
            with tf.device("/job:worker/task:1"):
                one = tf.ones([SIZE]) + 0.0 * weights
            self._update = tf1.assign_add(weights, one)
            self._sum = tf.reduce_sum(weights)
            self._initializer = tf1.global_variables_initializer()
        self.session = tf1.Session(servers.target(f"local:{master}"), graph, config)

    def initialize(self) -> None:
        self.session.run(self._initializer)

    def train(self) -> float:
        for _ in range(STEPS):
            self.session.run(self._update.op)
        return float(self.session.run(self._sum))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: Any) -> None:
        self.session.close()


@pytest.mark.parametrize("shared", [False, True])
def test_two_masters_name_the_servers_alike(servers: TensorFlowCluster, shared: bool) -> None:
    tasks = {"ps": [0], "worker": [1, 2]}
    name = f"alike_{shared}"
    with (
        Job(servers, name, tasks, 1, shared=shared) as first,
        Job(servers, name, tasks, 2, shared=shared) as second,
    ):
        first.initialize()
        if not shared:
            second.initialize()
        assert first.train() == SIZE * STEPS
        assert second.train() == SIZE * STEPS * (2 if shared else 1)
        assert first.train() == SIZE * STEPS * (3 if shared else 2)


def test_sessions_name_the_servers_differently(servers: TensorFlowCluster) -> None:
    with (
        Job(servers, "one", {"ps": [0], "worker": [1, 2]}, 1) as one,
        Job(servers, "other", {"ps": [2], "worker": [1, 0]}, 1) as other,
    ):
        for each in (one, other):
            each.initialize()
        for rounds in (1, 2):
            for each in (one, other):
                assert each.train() == SIZE * STEPS * rounds
    with Job(servers, "later", {"ps": [1], "worker": [2, 0]}, 0) as later:
        later.initialize()
        assert later.train() == SIZE * STEPS


def test_numbers_of_tasks_may_have_gaps(servers: TensorFlowCluster) -> None:
    cluster = cluster_pb2.ClusterDef()
    addresses = servers.spec["local"]
    cluster.job.add(name="ps", tasks={2: addresses[0]})
    cluster.job.add(name="worker", tasks={1: addresses[1], 7: addresses[2]})
    config = session_config()
    config.cluster_def.CopyFrom(cluster)
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:2"):
            weights = tf1.get_variable("gaps", [SIZE], initializer=tf1.zeros_initializer())
        with tf.device("/job:worker/task:7"):
            update = tf1.assign_add(weights, tf.ones([SIZE]) + 0.0 * weights)
        with tf1.Session(servers.target("local:1"), graph, config) as session:
            session.run(weights.initializer)
            for _ in range(STEPS):
                session.run(update.op)
            assert session.run(weights).tolist() == [STEPS] * SIZE
