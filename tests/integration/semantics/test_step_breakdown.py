"""The breakdown of steps: a slow place in a job must appear in the right part."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tensorwire.bench.lab import LocalCluster
from tensorwire.bench.lab.ports import PortLease

from .breakdown_task import SLOW_S
from .slow_wire import SlowWire
from .support import hear, task_environment

pytestmark = pytest.mark.timeout(120, method="thread", func_only=True)
TASK = Path(__file__).with_name("breakdown_task.py")
PARTS = ["input_s", "compute_s", "ps_s", "wire_s", "rest_s"]


class Job:
    """Tasks that report the breakdown of their steps, and the wire to their ps."""

    def __init__(self, tasks: dict[str, Any], wire: SlowWire, logs: Path) -> None:
        self._tasks, self._wire, self.logs = tasks, wire, logs

    def step(self, api: str, slow: str | None) -> dict[str, float]:
        task = self._tasks["worker" if api == "session" else "chief"]
        self._wire.held_s = SLOW_S if slow == "wire" else 0.0
        task.channel.send({"api": api, "slow": slow})
        found: dict[str, float] = hear(task)
        self._wire.held_s = 0.0
        return found

    def tags(self) -> set[str]:
        """The tags of the scalars for TensorBoard."""
        events = [
            event
            for file in self.logs.glob("events*")
            for event in tf.compat.v1.train.summary_iterator(str(file))
        ]
        return {value.tag for event in events for value in event.summary.value}


@pytest.fixture(scope="module")
def job(plugin: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("breakdown")
    lease = PortLease()
    with contextlib.ExitStack() as stack:
        stack.callback(lease.release)
        cluster = stack.enter_context(LocalCluster({"ps": 1, "worker": 1, "chief": 1}))
        grpc = {name: addresses[0] for name, addresses in cluster.spec.items()}
        data = {name: lease.take() for name in grpc}
        by_wire = lease.take()
        wire = SlowWire(by_wire, data["ps"])
        stack.callback(wire.close)
        tasks = {}
        for name in grpc:
            seen = data if name == "ps" else {**data, "ps": by_wire}
            where = folder / name
            where.mkdir()
            lines = [f"{grpc[other]}=127.0.0.1:{seen[other]}\n" for other in grpc]
            (where / ".endpoint_map").write_text("".join(lines))
            arguments = {"spec": cluster.spec, "job": name, "logs": str(folder / "logs")}
            argv = [sys.executable, str(TASK), json.dumps(arguments)]
            environment = task_environment({"TENSORWIRE_TRANSPORT": "tcp"})
            tasks[name] = cluster.start(name, 0, argv, environment, channel=True, cwd=where)
        for task in tasks.values():
            hear(task)
        yield Job(tasks, wire, folder / "logs")


@pytest.mark.parametrize(
    ("api", "slow", "part"),
    [
        ("session", "input", "input_s"),
        ("session", "compute", "compute_s"),
        ("session", "ps", "ps_s"),
        ("session", "update", "ps_s"),
        ("session", "wire", "wire_s"),
        ("function", "input", "input_s"),
        ("function", "compute", "compute_s"),
        ("function", "ps", "ps_s"),
        ("function", "wire", "wire_s"),
        ("keras", "input", "input_s"),
    ],
)
def test_a_step_spends_its_time_where_it_is_slow(job: Job, api: str, slow: str, part: str) -> None:
    step = job.step(api, slow)
    assert sum(step[each] for each in PARTS) == pytest.approx(step["step_s"])
    assert all(step[each] > -1e-6 for each in PARTS)
    assert step[part] > SLOW_S * 0.7


@pytest.mark.parametrize("api", ["session", "keras"])
def test_scalars_are_written_for_tensorboard(job: Job, api: str) -> None:
    job.step(api, None)
    tags = job.tags()
    assert {f"tensorwire/step/{part}" for part in PARTS} <= tags
    assert {"tensorwire/in_bytes_per_s", "tensorwire/waiting", "tensorwire/reactor"} <= tags
