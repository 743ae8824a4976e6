"""Collective operations give the same results on grpc++ as on gRPC; both send them over gRPC."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tensorwire.lab import LocalCluster

from .support import HERE, train
from .test_functions import wait_until

pytestmark = pytest.mark.timeout(300, func_only=True)

SCRIPT = HERE / "collectives_script.py"
STEPS = 10
SCALES = sum(number % 5 + 1 for number in range(STEPS))


def check_mirrored(values: object) -> None:
    assert isinstance(values, dict)
    assert values["small"] == [-3.0 * SCALES] * 3
    assert values["large"][1:] == [-3.0 * SCALES * (place % 7) for place in range(14)]
    assert values["gathered"] == [[1, 2, 2]] * STEPS


def test_mirrored_variables_are_the_same_as_on_grpc(tmp_path: Path) -> None:
    arguments = ["--mode", "mirrored", "--steps", str(STEPS)]
    expected = train(SCRIPT, {"worker": 2}, tmp_path / "grpc", "grpc", arguments)
    wire = train(SCRIPT, {"worker": 2}, tmp_path / "wire", "grpc++", arguments)
    check_mirrored(wire.values("worker-0"))
    assert wire.values("worker-0") == wire.values("worker-1")
    assert wire.values("worker-0") == expected.values("worker-0")
    for index in range(2):
        stats = wire.reports[f"worker-{index}"]["stats"]
        assert stats["tasks"]  # a server on grpc++
        assert stats["tx_bytes"] == stats["rx_bytes"] == 0  # docs/grpc.md says so


def test_collective_operations_of_a_session_give_the_same_as_on_grpc(tmp_path: Path) -> None:
    jobs = {"chief": 1, "worker": 1}
    arguments = ["--mode", "session", "--steps", str(STEPS)]
    expected = train(SCRIPT, jobs, tmp_path / "grpc", "grpc", arguments)
    wire = train(SCRIPT, jobs, tmp_path / "wire", "grpc++", arguments)
    for number, (sums, received) in enumerate(wire.values("chief-0")):
        assert sums == [[3.0 * number] * 2] * 4
        assert received == [*([[number + 0.5] * 4] * 2), [2.0 * number] * 2]
    assert wire.values("chief-0") == expected.values("chief-0")


def test_steps_after_one_that_failed_go_on_as_on_grpc(tmp_path: Path) -> None:
    # TensorFlow may reuse the ids of steps with collective operations.
    jobs = {"chief": 1, "worker": 1}
    arguments = ["--mode", "session", "--steps", "3", "--fails"]
    expected = train(SCRIPT, jobs, tmp_path / "grpc", "grpc", arguments)
    wire = train(SCRIPT, jobs, tmp_path / "wire", "grpc++", arguments)
    assert wire.values("chief-0")[3] == "InvalidArgumentError"
    assert wire.values("chief-0") == expected.values("chief-0")


@pytest.mark.parametrize("mode", ["mirrored", "session"])
def test_a_task_that_is_killed_ends_the_collective_operations_of_the_other(
    tmp_path: Path, mode: str
) -> None:
    jobs = {"worker": 2} if mode == "mirrored" else {"chief": 1, "worker": 1}
    options = ["--mode", mode, "--steps", "1000000", "--protocol", "grpc++"]
    argv = [sys.executable, str(SCRIPT), *options, "--directory", str(tmp_path)]
    with LocalCluster(jobs) as cluster:
        tasks = []
        for job, addresses in cluster.spec.items():
            for index in range(len(addresses)):
                config = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
                env = {"TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": "-1"}
                tasks.append(cluster.start(job, index, argv, env, cwd=tmp_path))
        survivor, doomed = tasks
        wait_until((tmp_path / "begun").exists)
        doomed.stop(signal.SIGKILL)
        cluster.wait([survivor], 60)
    assert json.loads((tmp_path / "lost.json").read_text())["values"] == "UnavailableError"
