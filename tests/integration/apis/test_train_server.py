"""tf.compat.v1.train.Server, replica_device_setter, MonitoredTrainingSession."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .support import HERE, train

pytestmark = pytest.mark.timeout(600, func_only=True)

SCRIPT = HERE / "server_script.py"
JOBS = {"ps": 2, "worker": 2}
STEPS = 30


@pytest.mark.core
@pytest.mark.every_version
def test_asynchronous_training_ends_with_the_same_variables_as_on_grpc(tmp_path: Path) -> None:
    arguments = ["--mode", "async", "--steps", str(STEPS)]
    expected = train(SCRIPT, JOBS, tmp_path / "grpc", "grpc", arguments)
    wire = train(SCRIPT, JOBS, tmp_path / "wire", "grpc++", arguments)
    values = wire.values("worker-0")
    assert values["global_step"] == 2 * STEPS
    assert values["scalar"] == -3.0 * 2 * STEPS
    assert np.count_nonzero(values["sparse"]) > 0
    assert values == expected.values("worker-0")
    assert wire.used_the_data_plane()


def test_synchronous_training_ends_with_the_same_variables_as_on_grpc(tmp_path: Path) -> None:
    arguments = ["--mode", "sync", "--steps", str(STEPS)]
    expected = train(SCRIPT, JOBS, tmp_path / "grpc", "grpc", arguments)
    wire = train(SCRIPT, JOBS, tmp_path / "wire", "grpc++", arguments)
    assert wire.values("worker-0")[0] == STEPS
    assert wire.values("worker-0") == expected.values("worker-0")
    loss = wire.reports["worker-0"]["loss"]
    assert loss["last"] < 0.5 * loss["first"]
    assert wire.used_the_data_plane()
