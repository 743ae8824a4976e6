"""Checksums with TensorFlow: a step does not use data that was damaged on the wire."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from .conftest import LOG_EVERYTHING
from .slow_wire import SlowWire, worker_by_wire

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(180, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]


def test_a_damaged_tensor_fails_its_step_by_name_and_the_next_step_goes_well(
    tmp_path: Path,
) -> None:
    # Checksums in one of the two tasks are enough for both directions, and tasks that have them use
    # TCP although they are on one host.
    env = {
        job: {
            "TENSORWIRE_TRANSPORT": "auto",
            "TENSORWIRE_CHECKSUM": checksum,
            **LOG_EVERYTHING,
        }
        for job, checksum in (("ps", "0"), ("worker", "1"))
    }
    with worker_by_wire(SlowWire, tmp_path, env) as (cluster, wire):
        with tf.Graph().as_default() as graph:
            with tf.device("/job:ps/task:0"):
                value = tf.ones([100_000], name="precious") * 2.0
            with tf.device("/job:worker/task:0"):
                wanted = tf.identity(value)
            with cluster.session(graph) as session:
                # The first two steps request the tensor; from the third on it is pushed.
                for whole_steps in (1, 4):
                    for _ in range(whole_steps):
                        assert np.all(session.run(wanted) == 2.0)
                    wire.damages = 1
                    with pytest.raises(tf.errors.DataLossError) as caught:
                        session.run(wanted)
                    assert re.search(
                        r"ps.*a payload of 400000 bytes arrived damaged.*it was to be .*mul",
                        caught.value.message,
                    ), caught.value.message
                assert np.all(session.run(wanted) == 2.0)
        figures = cluster.stats("worker:0")
        assert figures["pushed_tensors"] > 0
        assert figures["damaged_frames"] == 2
        assert "arrived damaged" in cluster.tasks["worker:0"].log.read_text()
