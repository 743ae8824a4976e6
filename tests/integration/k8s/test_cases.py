"""The published cases, under the restricted standard, placed by Kubernetes' scheduler.

Nodes are bare and run nothing. The tests check which pods Kubernetes places on the same node.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from k8s_cluster.cluster import Cluster, bare_nodes, eventually
from k8s_cluster.jobs import job_of_case
from k8s_cluster.manifests import by_kind
from local_kubernetes.api import Object
from tensorwire.k8s import submit
from tensorwire.k8s.connection import Connection
from tensorwire.k8s.layout import COLOCATED, ISOLATED, LAYOUTS, PUBLISHED, JobCase, plan_labels
from tensorwire.k8s.render import parse, render

pytestmark = [pytest.mark.newest, pytest.mark.timeout(300, func_only=True)]

ROLE, GROUP = "app.kubernetes.io/component", "tensorwire/group"


def servers(case: JobCase, layout: str) -> int:
    return len(plan_labels(case, layout, [f"node-{i}" for i in range(100)]))


def by_node(pods: list[Object]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for pod in pods:
        found.setdefault(pod["spec"]["nodeName"], []).append(pod)
    return found


def assert_placed_as_the_case_says(pods: list[Object], case: JobCase, layout: str) -> None:
    used = [Counter(pod["metadata"]["labels"][ROLE] for pod in on) for on in by_node(pods).values()]
    if layout == COLOCATED:
        assert used == [Counter(worker=case.workers_per_node, ps=1)] * case.ps
    else:
        workers = [Counter(worker=case.workers_per_node)] * (case.workers // case.workers_per_node)
        assert sorted(used, key=str) == sorted([*workers, *[Counter(ps=1)] * case.ps], key=str)
    for on in by_node(pods).values():
        labels = [pod["metadata"]["labels"] for pod in on]
        assert len({each[GROUP] for each in labels if each[ROLE] == "worker"}) <= 1


@pytest.mark.parametrize(
    ("number", "layout", "scheduling"),
    [
        (1, COLOCATED, "affinity"),
        (2, ISOLATED, "labels"),
        (3, ISOLATED, "affinity"),
        (4, COLOCATED, "labels"),
    ],
)
def test_a_case_is_accepted_and_placed_as_it_says(
    cluster: Cluster,
    number: int,
    layout: str,
    scheduling: str,
    record_property: Callable[[str, object], None],
) -> None:
    case = PUBLISHED[number - 1]
    count = servers(case, layout)
    names = [f"{cluster.namespace}-{i}" for i in range(count)]
    wanted = plan_labels(case, layout, names)
    labels = {node: {k: v for k, v in each.items() if v} for node, each in wanted.items()}
    of_nodes = labels if scheduling == "labels" else {}
    # With affinity there is one spare node, which must stay empty.
    spare = 0 if scheduling == "labels" else 1
    job = job_of_case(case, layout, scheduling=scheduling, token="x" * 64)
    documents = parse(render(job))
    assert by_kind(documents, "NetworkPolicy") and by_kind(documents, "Secret")
    with (
        bare_nodes(cluster, count + spare, labels=of_nodes) as nodes,
        Connection(kubeconfig=cluster.kubeconfig) as connection,
    ):
        began = time.monotonic()
        submit.submit(connection, documents)
        nodes.wait_placed(case.workers + case.ps)
        seconds = time.monotonic() - began
        record_property("seconds_to_schedule", round(seconds, 1))
        print(
            f"{case.name} {layout} {scheduling}: {case.workers + case.ps} pods in {seconds:.1f} s"
        )
        assert_placed_as_the_case_says(cluster.pods(), case, layout)


def test_a_jobset_is_placed_as_jobs_are(cluster: Cluster) -> None:
    case = PUBLISHED[1]
    for layout in LAYOUTS:
        documents = parse(render(job_of_case(case, layout, format="jobset", name=layout)))
        with (
            bare_nodes(cluster, servers(case, layout)) as nodes,
            Connection(kubeconfig=cluster.kubeconfig) as connection,
        ):
            submit.submit(connection, documents)
            nodes.wait_placed(case.workers + case.ps)
            assert_placed_as_the_case_says(cluster.pods(), case, layout)
            submit.delete(connection, layout, 60)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chief_goes_with_the_first_workers(cluster: Cluster, layout: str) -> None:
    case = JobCase("mine", 4, 2, 2)
    documents = parse(render(job_of_case(case, layout, api="strategy")))
    with (
        bare_nodes(cluster, servers(case, layout)) as nodes,
        Connection(kubeconfig=cluster.kubeconfig) as connection,
    ):
        submit.submit(connection, documents)
        nodes.wait_placed(7)
        (home,) = [
            on
            for on in by_node(cluster.pods()).values()
            if any(pod["metadata"]["labels"][ROLE] == "chief" for pod in on)
        ]
        labels = [pod["metadata"]["labels"] for pod in home]
        assert {each[GROUP] for each in labels} == {"0"}
        assert Counter(each[ROLE] for each in labels)["worker"] == 2


def test_two_jobs_share_nodes_without_minding_each_other(cluster: Cluster) -> None:
    case = JobCase("mine", 4, 2, 2)
    with (
        bare_nodes(cluster, 2) as nodes,
        Connection(kubeconfig=cluster.kubeconfig) as connection,
    ):
        for name in ("flights", "other"):
            job = job_of_case(case, COLOCATED, name=name)
            submit.submit(connection, parse(render(job)))
        nodes.wait_placed(12)
        assert [len(on) for on in by_node(cluster.pods()).values()] == [6, 6]


def test_with_too_few_nodes_whole_groups_wait(cluster: Cluster) -> None:
    documents = parse(render(job_of_case(JobCase("mine", 4, 2, 2), COLOCATED)))
    with (
        bare_nodes(cluster, 1) as nodes,
        Connection(kubeconfig=cluster.kubeconfig) as connection,
    ):
        submit.submit(connection, documents)
        nodes.wait_placed(3)

        def three_wait() -> bool:
            conditions = [
                c for pod in cluster.pods() for c in pod["status"].get("conditions") or ()
            ]
            return [c.get("reason") for c in conditions].count("Unschedulable") == 3

        eventually(three_wait)
        placed = [pod for pod in cluster.pods() if "nodeName" in pod["spec"]]
        roles = Counter(pod["metadata"]["labels"][ROLE] for pod in placed)
        assert roles == Counter(ps=1, worker=2)
