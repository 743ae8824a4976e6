"""Jobs for Kubeflow Trainer, Kueue and Volcano, checked by their schemas, without controllers.

The API server rejects fields that a schema does not have.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from command_line import Run, one_line
from k8s_cluster.cluster import Cluster
from local_kubernetes.api import Object
from local_kubernetes.control_plane import folder

pytestmark = [pytest.mark.newest, pytest.mark.timeout(300, func_only=True)]

JOB = (
    *("submit", "--name", "flights", "--image", "registry/image:1", "--script", "/app/train.py"),
    *("--workers", "4", "--ps", "2"),
)
PAGE = Path(__file__).parents[3] / "docs" / "kubernetes.md"


def test_a_trainjob_is_accepted_and_removed(cluster: Cluster, run: Run) -> None:
    arguments = (*JOB, "--format", "trainjob", "--queue", "team")
    said = one_line(run(*arguments))
    assert "the cluster has no TrainingRuntime: have Kubeflow Trainer 2 installed" in said
    with cluster.kinds(folder() / "trainer"):
        done = run(*arguments)
        assert done.status == 0, done
        assert "6 created" in done.out, done
        assert run(*arguments).out.endswith("6 unchanged\n")
        assert "flights: its tasks are not made yet" in run("status", "flights").out
        removed = run("delete", "flights").out
        assert "removed TrainJob flights" in removed and "TrainingRuntime flights" in removed
    assert cluster.is_empty


@pytest.mark.parametrize("format", ["plain", "jobset"])
def test_a_job_brings_volcano_a_group_of_all_its_pods(
    cluster: Cluster, run: Run, format: str
) -> None:
    arguments = (*JOB, "--format", format, "--volcano-queue", "team")
    said = one_line(run(*arguments))
    assert "the cluster has no PodGroup: have Volcano installed" in said
    with cluster.kinds(folder() / "volcano"):
        done = run(*arguments)
        assert done.status == 0, done
        groups = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{cluster.namespace}/podgroups"
        (group,) = cluster.api.items(groups)
        assert group["spec"]["minMember"] == 6 and group["spec"]["queue"] == "team"
        name = group["metadata"]["name"]
        for pod in cluster.wait_pods(6):
            assert pod["spec"]["schedulerName"] == "volcano"
            assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == name
        (count,) = re.findall(r"(\d+) created", done.out)
        assert run(*arguments).out.endswith(f"{count} unchanged\n")
        assert f"removed PodGroup {name}" in run("delete", "flights").out
    assert cluster.is_empty


def test_a_job_names_the_queue_of_kueue_that_the_page_makes(cluster: Cluster, run: Run) -> None:
    made: list[Object] = [
        each
        for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        for each in yaml.safe_load_all(block)
        if each["apiVersion"].startswith("kueue.x-k8s.io/")
    ]
    assert [each["kind"] for each in made] == ["ResourceFlavor", "ClusterQueue", "LocalQueue"]
    with cluster.kinds(folder() / "kueue"):
        for each in made:
            if each["kind"] == "LocalQueue":
                each["metadata"]["namespace"] = cluster.namespace
            cluster.control_plane.apply(each)
        done = run(*JOB, "--format", "jobset", "--queue", made[-1]["metadata"]["name"])
        assert done.status == 0, done
        (jobset,) = cluster.of_kind("jobsets")
        queues = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{cluster.namespace}/localqueues"
        (queue,) = cluster.api.items(queues)
        assert (
            jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue["metadata"]["name"]
        )
        # The pods request only resources for which the queue has quotas.
        (group,) = made[1]["spec"]["resourceGroups"]
        asked = {
            resource
            for pod in cluster.wait_pods(6)
            for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
            for resource in container["resources"].get("requests", {})
        }
        assert asked == set(group["coveredResources"])
        assert run("delete", "flights").status == 0
    assert cluster.is_empty
