"""Jobs train from `submit` to the end with a real control plane; pods are processes in a lab."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import Run
from k8s_cluster.cluster import Cluster, Lab, eventually
from tensorwire.bench.models import examples, flights
from tensorwire.k8s import watch
from tensorwire.k8s.connection import Connection
from tensorwire.k8s.layout import COLOCATED, ISOLATED
from tensorwire.k8s.state import JobState

pytestmark = [pytest.mark.newest, pytest.mark.timeout(600, func_only=True)]

HERE = Path(__file__).parent
FOLLOW = ("--follow", "--interval", "0.5")


def arguments(script: str, workers: int, layout: str, format: str = "plain") -> list[str]:
    size = ("--workers", str(workers), "--ps", "1", "--layout", layout, "--format", format)
    return ["--name", "flights", "--image", "image", "--script", str(HERE / script), *size]


def steps_of(log: Path) -> int:
    found = re.findall(r"^step (\d+)$", log.read_text(errors="replace"), re.MULTILINE)
    return max(map(int, found), default=0)


@pytest.fixture
def training(cluster: Cluster) -> Iterator[Callable[[], JobState]]:
    # One connection, because each asks the API server for all that it knows.
    with Connection(kubeconfig=cluster.kubeconfig) as connection:
        yield lambda: watch.observe(connection, "flights")


@pytest.mark.parametrize(("layout", "format"), [(COLOCATED, "plain"), (ISOLATED, "jobset")])
def test_case_1_with_4_workers_trains_the_flights_model_to_its_end(
    cluster: Cluster,
    lab: Lab,
    run: Run,
    claim: Path,
    training: Callable[[], JobState],
    layout: str,
    format: str,
) -> None:
    examples.write(claim, 4, *flights.MODEL.load())
    script = arguments("flights_script.py", 4, layout, format)
    claims = ("--claim", "data:/mnt/data", "--worker-cpu", "1")
    with lab(2, pods=6) as kubelet:
        done = run("submit", *script, *claims, *FOLLOW, "--", "/mnt/data", "150")
        assert done.status == 0, (done, kubelet.tails())
        assert done.out.endswith("flights: succeeded\n")
        where = {task.name: task.node for task in training().tasks}
        workers = {where[f"worker:{i}"] for i in range(4)}
        assert len(workers) == 1, where
        if layout == COLOCATED:
            assert where["ps:0"] in workers, where
        else:  # a JobSet that has succeeded removes the Jobs of serving tasks
            eventually(lambda: not cluster.pods("-ps-"))
        logs = run("logs", "flights", "--task", "worker").out
        for index in range(4):
            # The untrained loss is ln 2 = 0.69; a worker that joins late begins with less.
            (loss,) = re.findall(rf"^worker:{index}: loss ([\d.]+) at step", logs, re.MULTILINE)
            assert float(loss) < 0.62
            assert re.search(rf"^worker:{index}: [1-9]\d+ bytes on grpc\+\+$", logs, re.MULTILINE)
        # The ps are not needed any more.
        eventually(lambda: kubelet.processes == 0)
        again = run("submit", *script, *claims, "--", "/mnt/data", "150")
        assert "created" not in again.out and "changed" not in again.out.replace("unchanged", "")
        assert run("delete", "flights").status == 0
    assert cluster.is_empty


def test_a_killed_ps_comes_back_and_the_job_goes_on(
    cluster: Cluster, lab: Lab, run: Run, claim: Path, training: Callable[[], JobState]
) -> None:
    """The job survives the loss of a ps's container and of the API server."""
    script = arguments("training_script.py", 1, ISOLATED)
    options = ("--claim", "data:/mnt", "--worker-cpu", "1")
    with lab(2) as kubelet:
        assert run("submit", *script, *options, "--", "/mnt/{task_type}", "/mnt/enough").status == 0
        eventually(lambda: training().is_up, 240)
        namespace = cluster.namespace
        worker = kubelet.log("-worker-0-0-", namespace=namespace)
        eventually(lambda: steps_of(worker) > 60, 240)
        status = run("status", "flights", "--interval", "1").out
        assert re.search(r"steps/s, [\d.]+ MB/s", status), status
        # Training does not need the API server.
        cluster.control_plane.stop("kube-apiserver")
        before = steps_of(worker)
        eventually(lambda: steps_of(worker) > before + 30, 240)
        cluster.control_plane.start("kube-apiserver")
        cluster.control_plane.wait_ready()
        kubelet.kill("-ps-0-0-", namespace=namespace)
        before = steps_of(worker)
        eventually(lambda: steps_of(worker) > before + 30, 240)
        kubelet.renew_tokens()
        (claim / "enough").touch()
        eventually(lambda: training().outcome == "succeeded", 120)
        restarts = {task.name: task.restarts for task in training().tasks}
        assert restarts == {"ps:0": 1, "worker:0": 0}
        text = worker.read_text()
        assert re.search(r"^trained to a loss of [0-9.]+, [1-9]\d* bytes on grpc\+\+$", text, re.M)
        # It continues from its last checkpoint, not from the beginning.
        numbers = [int(n) for n in re.findall(r"^step (\d+)$", text, re.MULTILINE)]
        back = [after for before, after in itertools.pairwise(numbers) if after < before]
        assert len(back) <= 1 and all(number > 20 for number in back), numbers
        eventually(lambda: kubelet.processes == 0)


def test_a_worker_that_is_deleted_is_replaced_and_trains_on(
    cluster: Cluster, lab: Lab, run: Run, claim: Path, training: Callable[[], JobState]
) -> None:
    script = arguments("training_script.py", 1, COLOCATED)
    options = ("--claim", "data:/mnt", "--worker-cpu", "1")
    with lab(1, pods=4) as kubelet:
        assert run("submit", *script, *options, "--", "/mnt/{task_type}", "/mnt/enough").status == 0
        eventually(lambda: training().is_up, 240)
        namespace = cluster.namespace
        first = kubelet.log("-worker-0-0-", namespace=namespace)
        eventually(lambda: steps_of(first) > 40, 240)
        (pod,) = cluster.pods("-worker-0-0-")
        began = time.monotonic()
        cluster.delete("pods", pod["metadata"]["name"])

        def replaced() -> bool:
            pods = [p for p in cluster.pods("-worker-0-0-") if p["metadata"] != pod["metadata"]]
            names = [p["metadata"]["name"] for p in pods]
            return any(n != pod["metadata"]["name"] for n in names) and training().is_up

        eventually(replaced, 240)
        print(f"replaced after {time.monotonic() - began:.1f} s")
        second = kubelet.log("-worker-0-0-", namespace=namespace)
        eventually(lambda: steps_of(second) > 60, 240)
        (claim / "enough").touch()
        eventually(lambda: training().outcome == "succeeded", 120)
        assert min(map(int, re.findall(r"^step (\d+)$", second.read_text(), re.M))) > 20


def test_workers_that_are_added_take_items_of_the_queue(
    cluster: Cluster, lab: Lab, run: Run, claim: Path, training: Callable[[], JobState]
) -> None:
    def items(worker: int) -> list[str]:
        notes = claim / f"worker-{worker}"
        return notes.read_text().split() if notes.exists() else []

    script = arguments("queue_script.py", 1, COLOCATED)
    options = ("--max-workers", "3", "--claim", "data:/mnt", "--worker-cpu", "1")
    with lab(1, pods=5) as kubelet:
        assert run("submit", *script, *options, "--", "/mnt").status == 0
        eventually(lambda: items(0), 240)
        assert run("scale", "flights", "--workers", "3").status == 0
        eventually(lambda: items(1) and items(2), 240)
        # Worker 2 leaves, and others do what it has in work.
        assert run("scale", "flights", "--workers", "2").status == 0
        eventually(lambda: not cluster.pods("-worker-0-2-"))
        (claim / "hurry").touch()
        eventually(lambda: training().outcome == "succeeded", 240)
        done = [int(item) for worker in range(3) for item in items(worker)]
        assert set(done) == set(range(200)) and len(done) <= 201, (done, kubelet.tails())
        assert all(task.restarts == 0 for task in training().tasks)
