"""Steps with the same request ids as earlier steps.

TensorFlow draws them in a new thread for each step, from a generator with a 32-bit seed. Normally
about one of 43,000 steps repeats an id; here every step does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from .support import TensorFlowCluster, outcome

pytestmark = pytest.mark.timeout(180, method="thread", func_only=True)

_SOURCE = Path(__file__).with_name("one_request_id.cc")
STEPS = 5


@pytest.fixture
def alike(protocol: str, tmp_path: Path) -> Iterator[TensorFlowCluster]:
    """A ps and a worker whose steps all have the same request ids."""
    library = tmp_path / "one_request_id.so"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    with TensorFlowCluster(protocol, {"ps": 1, "worker": 1}) as cluster:
        cluster.start_all({"LD_PRELOAD": str(library)})
        yield cluster


def test_a_step_is_not_taken_for_an_earlier_one(alike: TensorFlowCluster) -> None:
    """Unlike on gRPC, which uses the ids to detect requests that are delivered twice."""
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            value = tf.identity(3.0)
        with tf.device("/job:worker/task:0"):
            result = value + 1.0
        with alike.session(graph) as session:
            first, *others = [outcome(lambda: float(session.run(result))) for _ in range(STEPS)]
    assert first == ("value", 4.0)
    if alike.protocol == "grpc++":
        assert others == [("value", 4.0)] * (STEPS - 1)
        return
    error: Any
    for kind, error in others:
        assert kind == "AbortedError"
        assert "received twice" in error
