"""Compares sessions with and without tensor fusion."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tensorwire.tf import ConfigProto

from .support import TensorFlowCluster, outcome, session_config, tf1

# Ends a step that deadlocks.
STEP_TIMEOUT_MS = 60_000


@contextlib.contextmanager
def fusing_session(cluster: TensorFlowCluster, graph: tf.Graph) -> Iterator[Any]:
    config = ConfigProto(tensor_fuse=True)
    config.MergeFrom(session_config(STEP_TIMEOUT_MS))
    with tf1.Session(cluster.target(), graph, config) as session:
        yield session


def total(cluster: TensorFlowCluster, counter: str) -> int:
    return sum(cluster.stats(task)[counter] for task in cluster.tasks)


def with_and_without(
    cluster: TensorFlowCluster, graph: tf.Graph, fetches: Any, feed: Any = None, steps: int = 1
) -> tuple[list[Any], list[Any]]:
    """The outcomes of `steps` steps in a session with fusion, and in one without."""
    with fusing_session(cluster, graph) as session:
        fused = [outcome(lambda: session.run(fetches, feed)) for _ in range(steps)]
    with cluster.session(graph, step_timeout_ms=STEP_TIMEOUT_MS) as session:
        single = [outcome(lambda: session.run(fetches, feed)) for _ in range(steps)]
    return fused, single
