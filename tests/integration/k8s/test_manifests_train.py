"""Rendered manifests train: they run as processes on hosts of the lab."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# The environment of the oldest TensorFlow, where these tests would be left out, lacks them.
pytest.importorskip("yaml")

from tensorwire.k8s.job import Job, Script
from tensorwire.k8s.layout import COLOCATED, ISOLATED
from tensorwire.k8s.local_kubernetes import LocalKubernetes, NotForBox
from tensorwire.k8s.render import parse, render
from tensorwire.k8s.state import counts
from tensorwire.metrics.observed_job import fetch

pytestmark = [
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


@contextlib.contextmanager
def running(layout: str, workers: int, folder: Path) -> Iterator[LocalKubernetes]:
    """The job in the lab; the file `claim/enough` in `folder` ends it."""
    (folder / "claim").mkdir()
    documents = parse(render(job(layout, workers)))
    try:
        with LocalKubernetes(documents, {"checkpoints": folder / "claim"}) as box:
            yield box
    except NotForBox as error:
        pytest.skip(str(error))


def steps_of(log: str) -> int:
    return max(map(int, re.findall(r"^step (\d+)$", log, re.MULTILINE)), default=0)


def trained_on_the_data_plane(log: str) -> bool:
    last = re.search(r"^trained to a loss of [0-9.]+, (\d+) bytes on grpc\+\+$", log, re.MULTILINE)
    return last is not None and int(last[1]) > 0


def test_a_killed_ps_comes_back_and_the_job_goes_on(tmp_path: Path) -> None:
    with running(COLOCATED, 1, tmp_path) as box:
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
    with running(ISOLATED, 2, tmp_path) as box:
        workers = {f"flights-worker-0-{member}.flights" for member in (0, 1)}
        assert sorted(box.nodes.values(), key=len) == [{"flights-ps-0-0.flights"}, workers]
        # Each of them: one that found that it is enough before its first step would start anew.
        box.run(lambda: min(steps_of(box.log(name)) for name in workers) > 10, timeout_s=240)
        # What `status` reads through the API server.
        ps = box.pod("flights-ps-0-0.flights").host
        found = ps.inside(lambda: fetch(f"{ps.address}:9100"))
        assert found.metrics is not None, found.error
        steps, moved = counts(found.metrics)
        assert steps > 10 and moved > 0
        (tmp_path / "claim" / "enough").touch()
        box.run(lambda: box.all_ended, timeout_s=240)
        assert [pod.restarts for pod in box.pods] == [0, 0, 0]
        assert all(trained_on_the_data_plane(box.log(name)) for name in workers), box.logs()
