"""Compares sessions with and without rewrites."""

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
def fusing_session(
    cluster: TensorFlowCluster, graph: tf.Graph, rewrite: str = "tensor_fuse"
) -> Iterator[Any]:
    config = ConfigProto(**{rewrite: True})
    config.MergeFrom(session_config(STEP_TIMEOUT_MS))
    with tf1.Session(cluster.target(), graph, config) as session:
        yield session


def total(cluster: TensorFlowCluster, counter: str) -> int:
    return sum(cluster.stats(task)[counter] for task in cluster.tasks)


def with_and_without(
    cluster: TensorFlowCluster,
    graph: tf.Graph,
    fetches: Any,
    feed: Any = None,
    steps: int = 1,
    rewrite: str = "tensor_fuse",
) -> tuple[list[Any], list[Any]]:
    """The outcomes of `steps` steps in a session with the rewrite, and in one without."""
    with fusing_session(cluster, graph, rewrite) as session:
        fused = [outcome(lambda: session.run(fetches, feed)) for _ in range(steps)]
    with cluster.session(graph, step_timeout_ms=STEP_TIMEOUT_MS) as session:
        single = [outcome(lambda: session.run(fetches, feed)) for _ in range(steps)]
    return fused, single
