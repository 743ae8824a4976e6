"""The effects of failures of the cluster on a job, and on its user's output.

Pods run in a lab, with a small server instead of TensorFlow, because Kubernetes is tested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import Run, one_line
from k8s_cluster.cluster import Cluster, Lab, eventually
from k8s_cluster.jobs import job
from tensorwire.k8s import submit, watch
from tensorwire.k8s.connection import Connection
from tensorwire.k8s.job import Script
from tensorwire.k8s.render import parse, render
from tensorwire.k8s.state import FAILED, SUCCEEDED, JobState

pytestmark = [pytest.mark.newest, pytest.mark.timeout(300, func_only=True)]

# Serves until it is told to end. A worker ends when the file exists.
SCRIPT = """
import os, pathlib, socket, sys, time
server = socket.create_server(("", 2222))
print("serving", flush=True)
while os.environ["TASK_TYPE"] == "ps" or not pathlib.Path("/mnt/enough").exists():
    time.sleep(0.05)
"""


class Running:
    """A job whose tasks only serve."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        self.cluster = cluster
        path = "/etc/tensorwire/serve.py"
        of = job(
            2, 1, image="image", script=Script(path, SCRIPT), claims={"data": "/mnt"}, **options
        )
        text = render(of).replace(
            f"exec tensorwire run --protocol grpc++ {path}", f"exec python3 {path}"
        )
        with self.connected() as connection:
            submit.submit(connection, parse(text))

    def connected(self) -> Connection:
        return Connection(kubeconfig=self.cluster.kubeconfig)

    def state(self) -> JobState:
        with self.connected() as connection:
            return watch.observe(connection, "flights")

    def wait_up(self) -> None:
        eventually(lambda: self.state().is_up)

    def node_of(self, task: str) -> str:
        (found,) = [each for each in self.state().tasks if each.name == task]
        assert found.node is not None
        return found.node

    def end(self, claim: Path) -> None:
        (claim / "enough").touch()
        eventually(lambda: self.state().outcome == SUCCEEDED)


def test_the_controllers_and_the_scheduler_are_restarted(
    cluster: Cluster, lab: Lab, claim: Path
) -> None:
    components = ("kube-controller-manager", "kube-scheduler", "jobset-controller")
    with lab(2) as kubelet:
        for component in components:
            cluster.control_plane.stop(component)
        running = Running(cluster, layout="isolated")
        assert not running.cluster.pods()
        for component in components:
            cluster.control_plane.start(component)
        running.wait_up()
        running.end(claim)
        eventually(lambda: kubelet.processes == 0)


def test_a_node_that_is_lost_holds_its_pods_until_its_owner_says_that_it_is_gone(
    cluster: Cluster, lab: Lab, claim: Path, run: Run
) -> None:
    with lab(3) as kubelet:
        running = Running(cluster, layout="isolated", wanted_workers_per_node=2)
        running.wait_up()
        lost = running.node_of("worker:0")
        kubelet.lose(lost)

        def is_told() -> bool:
            return f"its node {lost} does not answer" in run("status", "flights").out

        eventually(is_told, 90)
        # Kubernetes cannot know that nothing runs there any more; the administrator does.
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "gone", "effect": "NoExecute"}
        node = cluster.api.get(f"/api/v1/nodes/{lost}")
        taints = [*(node["spec"].get("taints") or ()), taint]
        cluster.api.patch(f"/api/v1/nodes/{lost}", {"spec": {"taints": taints}})
        eventually(lambda: running.state().is_up and running.node_of("worker:0") != lost, 120)
        running.end(claim)


def test_a_node_that_is_drained_gives_its_pods_to_another(
    cluster: Cluster, lab: Lab, claim: Path
) -> None:
    with lab(2, pods=4):
        running = Running(cluster)
        running.wait_up()
        drained = running.node_of("worker:0")
        cluster.api.patch(f"/api/v1/nodes/{drained}", {"spec": {"unschedulable": True}})
        for pod in cluster.pods():
            name = pod["metadata"]["name"]
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            cluster.api.create(f"{cluster.path('pods', name)}/eviction", body)
        eventually(lambda: running.state().is_up and running.node_of("worker:0") != drained, 90)
        assert running.node_of("ps:0") == running.node_of("worker:1")
        assert running.state().outcome is None
        running.end(claim)


def test_workers_fail_as_often_as_retries_say_and_evictions_do_not_count(
    cluster: Cluster, lab: Lab, claim: Path
) -> None:
    with lab(1, pods=5) as kubelet:
        running = Running(cluster, retries=1)
        for round_ in range(2):
            running.wait_up()
            (pod,) = [
                p for p in cluster.pods("-worker-0-1-") if p["status"].get("phase") == "Running"
            ]
            kubelet.kill(pod["metadata"]["name"], namespace=cluster.namespace)
            name = pod["metadata"]["name"]
            eventually(
                lambda name=name: (
                    cluster.api.get(cluster.path("pods", name))["status"]["phase"] == "Failed"
                )
            )
            if round_ == 0:
                eventually(lambda: len(cluster.pods("-worker-0-1-")) == 2)
        eventually(lambda: running.state().outcome == FAILED)
        # The ps of a failed job are not needed any more.
        eventually(lambda: kubelet.processes == 0)


def test_an_image_that_cannot_be_pulled_is_told(
    cluster: Cluster, lab: Lab, run: Run, claim: Path
) -> None:
    with lab(1, pods=4, images=["another"]):
        running = Running(cluster)
        says = "the image image cannot be pulled"
        eventually(lambda: says in " ".join(running.state().all_troubles))
        assert says in run("status", "flights").out


def test_an_account_without_rights_leaves_the_ps_running_and_says_so(
    cluster: Cluster, lab: Lab, run: Run, claim: Path
) -> None:
    cluster.account("nobody")
    with lab(1, pods=4) as kubelet:
        running = Running(cluster, service_account="nobody")
        running.wait_up()
        (claim / "enough").touch()
        eventually(lambda: running.state().outcome == SUCCEEDED)
        keeper = kubelet.log("-ps-0-0-", "keeper", cluster.namespace)
        says = "service account must be allowed to list jobs"
        eventually(lambda: says in keeper.read_text())
        assert kubelet.processes == 2
        assert run("delete", "flights").status == 0
        eventually(lambda: kubelet.processes == 0)


def test_a_missing_claim_is_told(cluster: Cluster, lab: Lab, run: Run) -> None:
    with lab(1, pods=4):
        running = Running(cluster)
        says = 'persistentvolumeclaim "data" not found'
        eventually(lambda: says in " ".join(running.state().all_troubles))


def test_pods_below_the_restricted_standard_are_refused_and_told(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    """A user's template contains a setting that the namespace forbids."""
    assert run("templates", str(tmp_path / "mine")).status == 0
    pod = tmp_path / "mine" / "pod.yaml.j2"
    pod.write_text(pod.read_text().replace("runAsNonRoot: true", "runAsNonRoot: false"))
    named = ("--name", "flights", "--image", "image", "--script", "/app/train.py")
    size = ("--workers", "1", "--ps", "1", "--templates", str(tmp_path / "mine"))
    done = run("submit", *named, *size, "--follow", "--interval", "0.2", "--timeout", "2")
    assert "its pods cannot be created" in one_line(done)
    assert "the namespace forbids a setting of your templates" in done.err
