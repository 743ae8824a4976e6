"""A wire that is slow: tensors that have been sent are under way for long."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from .slow_wire import SlowWire, worker_by_wire

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(180, method="thread", func_only=True),
]

TENSORS = 100
STEPS = 50
HELD_S = 0.13
# If the ps kept something for each tensor, it would be at least this.
MOST_GROWTH = TENSORS * STEPS * 200


def test_what_is_under_way_is_not_requested_and_leaves_nothing_behind(
    plugin: None, tmp_path: Path
) -> None:
    with worker_by_wire(SlowWire, tmp_path) as (cluster, wire), tf.Graph().as_default() as graph:
        least = []
        for i in range(TENSORS):
            with tf.device("/job:ps/task:0"):
                made = tf.random.uniform([100], name=f"made_{i}")
            with tf.device("/job:worker/task:0"):
                least.append(tf.reduce_min(made))
        with tf.device("/job:worker/task:0"):
            result = tf.add_n(least)
        ps = psutil.Process(cluster.tasks["ps:0"].pid)
        with cluster.session(graph) as session:
            for _ in range(200):
                session.run(result)
            wire.held_s = HELD_S
            for _ in range(10):
                session.run(result)
            asked, held = cluster.stats("ps:0")["served_tensors"], ps.memory_info().rss
            for _ in range(STEPS):
                session.run(result)
            asked = cluster.stats("ps:0")["served_tensors"] - asked
            grown = ps.memory_info().rss - held
    assert asked == 0
    assert grown < MOST_GROWTH
