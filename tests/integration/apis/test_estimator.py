"""tf.estimator: RunConfig(protocol=…) and train_and_evaluate, with an evaluator outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .support import HERE, Training, train

pytestmark = [
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(
        tf.version.VERSION.split(".")[:2] > ["2", "15"],
        reason="TensorFlow 2.16 has no tf.estimator",
    ),
]

SCRIPT = HERE / "estimator_script.py"
JOBS = {"ps": 1, "chief": 1, "worker": 1, "evaluator": 1}
STEPS = 40


def check(training: Training, directory: Path) -> Any:
    """Checks that the last checkpoint fits its number of steps; returns its variables."""
    values = training.values("chief-0")
    steps = values["global_step"]
    # Both workers may be within a step when the last step is reached.
    assert STEPS <= steps <= STEPS + 2
    column_sums = (np.arange(4 * 200) % 5 - 2).reshape(4, 200).sum(0)
    assert np.ravel(values["weights"]).tolist() == (-steps * column_sums).tolist()
    table = np.zeros([50, 3])
    table[[1, 49]] = -steps
    table[7] = -2 * steps
    assert np.array(values["table"]).tolist() == table.tolist()
    evaluated = training.reports["evaluator-0"]
    assert evaluated["metrics"]["global_step"] == evaluated["values"]["global_step"]
    assert list((directory / "model" / "eval").glob("events.*"))
    assert evaluated["metrics"]["table_sum"] == -12.0 * evaluated["metrics"]["global_step"]
    return {name: np.array(value) / steps for name, value in values.items()}


@pytest.mark.every_version
def test_train_and_evaluate_ends_with_the_same_model_as_on_grpc(tmp_path: Path) -> None:
    arguments = ["--steps", str(STEPS)]
    results = {}
    for protocol in ("grpc", "grpc++"):
        training = train(
            SCRIPT, JOBS, tmp_path / protocol, protocol, arguments, outside=["evaluator"]
        )
        results[protocol] = check(training, tmp_path / protocol)
        assert training.used_the_data_plane("chief-0") == (protocol == "grpc++")
    for name, value in results["grpc"].items():
        np.testing.assert_array_equal(results["grpc++"][name], value)


def test_tensor_fuse_in_the_session_config_of_a_run_config(tmp_path: Path) -> None:
    arguments = ["--steps", str(STEPS), "--tensor-fuse"]
    jobs = {"ps": 1, "chief": 1, "evaluator": 1}
    training = train(SCRIPT, jobs, tmp_path, "grpc++", arguments, outside=["evaluator"])
    check(training, tmp_path)
    assert training.reports["chief-0"]["stats"]["fused_messages"] > 0
