"""The scripts in examples/ run unchanged, and train."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensorflow as tf

from .support import train

pytestmark = pytest.mark.timeout(300, func_only=True)

EXAMPLES = Path(__file__).parents[3] / "examples"


def loss_told(log: str) -> float:
    found = re.search(r"loss (\d+\.\d+)", log)
    assert found, log
    return float(found[1])


def test_the_server_example_trains(tmp_path: Path) -> None:
    script = EXAMPLES / "train_server.py"
    training = train(script, {"ps": 1, "worker": 1}, tmp_path, None, as_is=True)
    assert loss_told(training.logs["worker:0"]) < 0.1
    assert re.search(r"sent [1-9]\d{4,} bytes on grpc\+\+", training.logs["worker:0"])


def test_the_strategy_example_trains(tmp_path: Path) -> None:
    script = EXAMPLES / "train_strategy.py"
    jobs = {"ps": 1, "worker": 1, "chief": 1}
    training = train(script, jobs, tmp_path, None, as_is=True)
    assert loss_told(training.logs["chief:0"]) < 0.1


@pytest.mark.skipif(
    tf.version.VERSION.split(".")[:2] > ["2", "15"], reason="TensorFlow 2.16 has no tf.estimator"
)
def test_the_estimator_example_trains(tmp_path: Path) -> None:
    script = EXAMPLES / "train_estimator.py"
    env = {"TMPDIR": str(tmp_path)}
    training = train(script, {"ps": 1, "chief": 1}, tmp_path, None, env=env, as_is=True)
    assert re.search(r"sent [1-9]\d{4,} bytes on grpc\+\+", training.logs["chief:0"])
    assert (tmp_path / "tensorwire-estimator-example" / "model.ckpt-300.index").exists()
