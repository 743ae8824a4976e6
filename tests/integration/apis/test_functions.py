"""Scheduled functions that fail, and workers that are restarted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorwire.bench.lab import LocalCluster, TaskProcess
from waiting import wait_until

from .support import HERE, train

pytestmark = pytest.mark.timeout(300, func_only=True)

SCRIPT = HERE / "functions_script.py"
JOBS = {"ps": 1, "worker": 1, "chief": 1}
DEADLINE_S = 90.0


@pytest.mark.core
@pytest.mark.every_version
def test_functions_fail_as_on_grpc_and_the_next_ones_work(tmp_path: Path) -> None:
    expected = train(SCRIPT, JOBS, tmp_path / "grpc", "grpc", ["--mode", "errors"])
    wire = train(SCRIPT, JOBS, tmp_path / "wire", "grpc++", ["--mode", "errors"])
    failures = expected.values("chief-0")
    for function in ("on_worker", "on_ps", "nothing_returned"):
        assert failures[function] == "InvalidArgumentError"
    totals = [value for name, value in failures.items() if name.startswith("after")]
    assert totals == pytest.approx([sum(range(100_000))] * 4, rel=1e-5)
    assert wire.values("chief-0") == failures
    assert wire.reports["worker-0"]["stats"]["eager_calls"] > 0
    # The connections that the chief ended were reopened.
    peers = wire.reports["chief-0"]["stats"]["peers"]
    connects = {peer["peer"]: peer["connects"] for peer in peers}
    for job in ("ps", "worker"):
        assert connects[f"/job:{job}/replica:0/task:0"] >= 2, connects
    assert wire.reports["ps-0"]["stats"]["eager_calls"] > 0


def test_operations_in_a_stream_are_done_in_order_and_fail_as_on_grpc(tmp_path: Path) -> None:
    expected = train(SCRIPT, JOBS, tmp_path / "grpc", "grpc", ["--mode", "operations"])
    wire = train(SCRIPT, JOBS, tmp_path / "wire", "grpc++", ["--mode", "operations"])
    values = wire.values("chief-0")
    assert values == expected.values("chief-0")
    sums = [size * 2.0 * (number + 1) for size in (10, 1_000_000) for number in range(20)]
    assert values["sums"] == values["after failure"] == sums
    assert values["failed"] == "InvalidArgumentError"
    assert values["after a lost connection"] == [7.0, *sums]
    assert wire.reports["worker-0"]["stats"]["eager_calls"] > 3 * len(sums)


class Enduring:
    """A cluster whose chief schedules functions until the test stops it."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        arguments = ["--protocol", "grpc++", "--directory", str(directory), "--mode", "endure"]
        self._argv = [sys.executable, str(SCRIPT), *arguments]

    def start(self, job: str, index: int) -> TaskProcess:
        task = {"type": job, "index": index}
        env = {
            "TF_CONFIG": json.dumps({"cluster": self.cluster.spec, "task": task}),
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        return self.cluster.start(job, index, self._argv, env, cwd=self.directory)

    def has_begun(self) -> bool:
        return (self.directory / "begun").exists()

    def eager_calls(self, task: str) -> int:
        """The number of eager calls that a task has served, by its last report."""
        path = self.directory / f"{task}.json"
        stats: Any = json.loads(path.read_text())["stats"] if path.exists() else None
        return stats["eager_calls"] if stats else 0

    def end(self, chief: TaskProcess) -> Any:
        """The report of the chief."""
        (self.directory / "enough").touch()
        self.cluster.wait([chief], 60)
        return json.loads((self.directory / "chief-0.json").read_text())["values"]


@pytest.mark.every_version
def test_functions_complete_while_a_worker_is_killed_and_comes_back(tmp_path: Path) -> None:
    with LocalCluster({"ps": 1, "worker": 2, "chief": 1}) as cluster:
        enduring = Enduring(cluster, tmp_path)
        enduring.start("ps", 0)
        enduring.start("worker", 0)
        doomed = enduring.start("worker", 1)
        chief = enduring.start("chief", 0)
        wait_until(
            lambda: enduring.has_begun() and enduring.eager_calls("worker-1") > 20, DEADLINE_S
        )
        doomed.stop()
        (tmp_path / "worker-1.json").unlink()
        enduring.start("worker", 1)
        wait_until(lambda: enduring.eager_calls("worker-1") > 20, DEADLINE_S)
        values = enduring.end(chief)
    assert values["wrong"] == 0
    assert values["done"] > 0


def test_a_ps_that_is_gone_ends_the_training_with_an_error(tmp_path: Path) -> None:
    with LocalCluster(JOBS) as cluster:
        enduring = Enduring(cluster, tmp_path)
        doomed = enduring.start("ps", 0)
        enduring.start("worker", 0)
        chief = enduring.start("chief", 0)
        wait_until(enduring.has_begun, DEADLINE_S)
        doomed.stop()
        wait_until((tmp_path / "chief-0.json").exists, DEADLINE_S)
        assert enduring.end(chief) == {"error": "UnavailableError"}
