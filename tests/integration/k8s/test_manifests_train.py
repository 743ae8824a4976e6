"""What we render trains: manifests as processes on hosts of the lab."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

# The environment of the oldest TensorFlow, where these tests would be left out, lacks it.
pytest.importorskip("kubernetes_validate")

from k8s_double.box import Box
from tensorwire.k8s.job import Job, Script
from tensorwire.k8s.layout import COLOCATED, ISOLATED
from tensorwire.k8s.progress import counts
from tensorwire.k8s.render import parse, render

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.newest,
    pytest.mark.timeout(600, func_only=True),
]

SCRIPT = Path(__file__).with_name("training_script.py")


def job(layout: str, workers: int) -> Job:
    return Job(
        "flights",
        "image",
        Script(f"/etc/tensorwire/{SCRIPT.name}", SCRIPT.read_text()),
        workers=workers,
        ps=1,
        layout=layout,
        arguments=["/mnt/{task_type}", "/mnt/enough"],
        claims={"checkpoints": "/mnt"},
    )


def steps_of(log: str) -> int:
    return max(map(int, re.findall(r"^step (\d+)$", log, re.MULTILINE)), default=0)


def trained_on_the_data_plane(log: str) -> bool:
    last = re.search(r"^trained to a loss of [0-9.]+, (\d+) bytes on grpc\+\+$", log, re.MULTILINE)
    return last is not None and int(last[1]) > 0


def test_a_killed_ps_comes_back_and_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "claim").mkdir()
    documents = parse(render(job(COLOCATED, workers=1)))
    with Box(documents, tmp_path, {"checkpoints": tmp_path / "claim"}) as box:
        worker, ps = "flights-worker-0-0.flights", "flights-ps-0-0.flights"
        assert list(box.nodes.values()) == [{worker, ps}]
        box.run(lambda: steps_of(box.log(worker)) > 60, timeout_s=240)
        box.kill(ps)
        before = steps_of(box.log(worker))
        box.run(lambda: steps_of(box.log(worker)) > before + 30, timeout_s=240)
        (tmp_path / "claim" / "enough").touch()
        box.run(lambda: box.all_ended, timeout_s=240)
        assert box.pod(ps).restarts == 1
        assert box.pod(worker).restarts == 0
        log = box.log(worker)
        assert trained_on_the_data_plane(log), log
        # From its last checkpoint on, and not from the beginning.
        numbers = [int(n) for n in re.findall(r"^step (\d+)$", log, re.MULTILINE)]
        back = [after for before, after in itertools.pairwise(numbers) if after < before]
        assert len(back) <= 1 and all(number > 20 for number in back), numbers


def test_isolated_workers_train_with_their_ps_on_another_node(tmp_path: Path) -> None:
    (tmp_path / "claim").mkdir()
    documents = parse(render(job(ISOLATED, workers=2)))
    with Box(documents, tmp_path, {"checkpoints": tmp_path / "claim"}) as box:
        workers = {f"flights-worker-0-{member}.flights" for member in (0, 1)}
        assert sorted(box.nodes.values(), key=len) == [{"flights-ps-0-0.flights"}, workers]
        first = "flights-worker-0-0.flights"
        box.run(lambda: steps_of(box.log(first)) > 10, timeout_s=240)
        # What `status` reads through the API server.
        steps, moved = counts(json.loads(box.get("flights-ps-0-0.flights", 9100, "/figures")))
        assert steps > 10 and moved > 0
        (tmp_path / "claim" / "enough").touch()
        box.run(lambda: box.all_ended, timeout_s=240)
        assert [pod.restarts for pod in box.pods] == [0, 0, 0]
        assert all(trained_on_the_data_plane(box.log(name)) for name in workers), box.logs()
