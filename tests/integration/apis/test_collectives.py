"""Collective operations of tasks on grpc++ give the right results."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tensorwire.bench.lab import LocalCluster
from waiting import wait_until

from .support import HERE, train
from .test_functions import DEADLINE_S

pytestmark = pytest.mark.timeout(300, func_only=True)

SCRIPT = HERE / "collectives_script.py"
STEPS = 10
SCALES = sum(number % 5 + 1 for number in range(STEPS))


def test_mirrored_variables_are_summed(tmp_path: Path) -> None:
    """The collective operations themselves go over gRPC, as docs/grpc.md says."""
    arguments = ["--mode", "mirrored", "--steps", str(STEPS)]
    wire = train(SCRIPT, {"worker": 2}, tmp_path, "grpc++", arguments)
    for index in range(2):
        values = wire.values(f"worker-{index}")
        assert values["small"] == [-3.0 * SCALES] * 3
        assert values["large"][1:] == [-3.0 * SCALES * (place % 7) for place in range(14)]
        assert values["gathered"] == [[1, 2, 2]] * STEPS
        stats = wire.reports[f"worker-{index}"]["stats"]
        assert stats["tasks"]  # a server on grpc++
        assert stats["tx_bytes"] == stats["rx_bytes"] == 0


def test_collective_operations_of_a_session_go_on_after_a_step_that_failed(tmp_path: Path) -> None:
    # TensorFlow may reuse the ids of steps with collective operations.
    arguments = ["--mode", "session", "--steps", str(STEPS), "--fails"]
    wire = train(SCRIPT, {"chief": 1, "worker": 1}, tmp_path, "grpc++", arguments)

    def right(number: float) -> list[list[list[float]]]:
        received = [*([[number + 0.5] * 4] * 2), [2.0 * number] * 2]
        return [[[3.0 * number] * 2] * 4, received]

    assert wire.values("chief-0") == [
        *map(right, range(STEPS)),
        "InvalidArgumentError",
        *map(right, (1, 2)),
    ]


def test_a_task_that_is_killed_ends_the_collective_operations_of_the_other(tmp_path: Path) -> None:
    jobs = {"chief": 1, "worker": 1}
    options = ["--mode", "session", "--steps", "1000000", "--protocol", "grpc++"]
    argv = [sys.executable, str(SCRIPT), *options, "--directory", str(tmp_path)]
    with LocalCluster(jobs) as cluster:
        tasks = []
        for job, addresses in cluster.spec.items():
            for index in range(len(addresses)):
                config = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
                env = {"TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": "-1"}
                tasks.append(cluster.start(job, index, argv, env, cwd=tmp_path))
        survivor, doomed = tasks
        wait_until((tmp_path / "begun").exists, DEADLINE_S)
        doomed.stop(signal.SIGKILL)
        cluster.wait([survivor], 60)
    assert json.loads((tmp_path / "lost.json").read_text())["values"] == "UnavailableError"
