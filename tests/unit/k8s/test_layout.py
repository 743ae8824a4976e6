"""The nodes that a job's pods land on, by a simulated scheduler."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from k8s_double.jobs import job, job_of_case, manifests
from tensorwire.errors import UsageError
from tensorwire.k8s.layout import COLOCATED, ISOLATED, LAYOUTS, PUBLISHED, JobCase, command, plan
from tensorwire.k8s.local_kubernetes.pods import Node, feasible, pods_of, schedule

ROLE, GROUP = "app.kubernetes.io/component", "tensorwire/group"


def servers(case: JobCase, layout: str) -> int:
    return len(plan(case, layout, [f"node-{i}" for i in range(100)]))


def labelled_nodes(case: JobCase, layout: str) -> list[Node]:
    names = [f"node-{i}" for i in range(servers(case, layout))]
    return [
        Node(name, {k: v for k, v in labels.items() if v is not None})
        for name, labels in plan(case, layout, names).items()
    ]


def assert_placed_as_the_case_says(nodes: list[Node], case: JobCase, layout: str) -> None:
    used = [Counter(pod.labels[ROLE] for pod in node.pods) for node in nodes if node.pods]
    if layout == COLOCATED:
        assert used == [Counter(worker=case.workers_per_node, ps=1)] * case.ps
    else:
        assert sorted(used, key=str) == sorted(
            [Counter(worker=case.workers_per_node)] * (case.workers // case.workers_per_node)
            + [Counter(ps=1)] * case.ps,
            key=str,
        )
    for node in nodes:
        workers = {pod.labels[GROUP] for pod in node.pods if pod.labels[ROLE] == "worker"}
        assert len(workers) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: f"case-{case.name}")
def test_labels_of_a_case_suit_exactly_the_pods_that_they_are_for(
    case: JobCase, layout: str
) -> None:
    pods = pods_of(manifests(job_of_case(case, layout, scheduling="labels")))
    nodes = labelled_nodes(case, layout)
    assert len(pods) == case.workers + case.ps
    for pod in pods:
        index = int(pod.labels[GROUP])
        expected = index
        if layout == ISOLATED and pod.labels[ROLE] == "ps":
            expected += case.workers // case.workers_per_node
        assert [node.name for node in feasible(pod, nodes)] == [f"node-{expected}"]
    # Nodes of other cases and layouts, and nodes without labels, suit none of them.
    others = [(c, each) for c in PUBLISHED for each in LAYOUTS if (c, each) != (case, layout)]
    unsuited = [node for other in others for node in labelled_nodes(*other)] + [Node("bare")]
    one_of_each_group = {(pod.labels[ROLE], pod.labels[GROUP]): pod for pod in pods}.values()
    assert not any(feasible(pod, unsuited) for pod in one_of_each_group)
    assert schedule(pods, nodes) == []
    assert_placed_as_the_case_says(nodes, case, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", PUBLISHED[:3], ids=lambda case: f"case-{case.name}")
@pytest.mark.parametrize("format", ["plain", "jobset"])
@pytest.mark.parametrize("spare", [0, 7])
def test_without_labels_pods_find_together_in_any_order(
    case: JobCase, layout: str, format: str, spare: int
) -> None:
    pods = pods_of(manifests(job_of_case(case, layout, format=format)))
    random.Random(case.name + layout).shuffle(pods)
    nodes = [Node(f"node-{i}") for i in range(servers(case, layout) + spare)]
    assert schedule(pods, nodes) == []
    assert_placed_as_the_case_says(nodes, case, layout)


def test_two_jobs_share_a_cluster_without_minding_each_other() -> None:
    nodes = [Node(f"node-{i}") for i in range(2)]
    pods = pods_of(manifests(job(4, 2, layout=COLOCATED)))
    others = pods_of(manifests(job(4, 2, layout=COLOCATED, name="other")))
    assert schedule([*others, *pods], nodes) == []
    assert [len(node.pods) for node in nodes] == [6, 6]


def test_a_cluster_with_too_few_nodes_leaves_pods_waiting() -> None:
    nodes = [Node("only")]
    waiting = schedule(pods_of(manifests(job(4, 2, layout=COLOCATED))), nodes)
    assert Counter(pod.labels[ROLE] for pod in waiting) == Counter(ps=1, worker=2)
    assert Counter(pod.labels[ROLE] for pod in nodes[0].pods) == Counter(ps=1, worker=2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheduling", ["affinity", "labels"])
def test_a_chief_goes_with_the_first_workers(layout: str, scheduling: str) -> None:
    case = JobCase("mine", 4, 2, 2)
    pods = pods_of(manifests(job_of_case(case, layout, scheduling=scheduling, api="strategy")))
    nodes = [Node(f"node-{i}") for i in range(servers(case, layout))]
    if scheduling == "labels":
        nodes = labelled_nodes(case, layout)
    assert schedule(pods, nodes) == []
    (home,) = [n for n in nodes if any(p.labels[ROLE] == "chief" for p in n.pods)]
    assert {p.labels[GROUP] for p in home.pods} == {"0"}
    assert Counter(p.labels[ROLE] for p in home.pods)["worker"] == 2


def test_workers_that_are_left_over_have_a_node_of_their_own_when_isolated() -> None:
    nodes = [Node(f"node-{i}") for i in range(4)]
    pods = pods_of(manifests(job(5, 1, layout=ISOLATED, wanted_workers_per_node=2)))
    assert schedule(pods, nodes) == []
    assert sorted(len(node.pods) for node in nodes) == [1, 1, 2, 2]


def test_a_layout_that_cannot_be_had_is_refused_with_what_would_fit() -> None:
    with pytest.raises(UsageError, match="51 workers need 6 ps, not 5"):
        job(51, 5, layout=COLOCATED, wanted_workers_per_node=10)


def test_labels_of_another_case_go_when_a_node_is_labelled() -> None:
    assert command("n1", plan(PUBLISHED[0], COLOCATED, ["n1"])["n1"]) == (
        "kubectl label node n1 --overwrite SCENCE=1 CASE=1 INDEX=0 TYPE-"
    )
    removed = plan(PUBLISHED[0], COLOCATED, ["n1", "n2"], remove=True)
    assert command("n2", removed["n2"]).endswith("SCENCE- CASE- INDEX- TYPE-")


def test_too_few_nodes_to_label_are_refused() -> None:
    with pytest.raises(UsageError, match="case 2, isolated, takes 10 nodes, not 2"):
        plan(PUBLISHED[1], ISOLATED, ["n1", "n2"])
    with pytest.raises(UsageError, match="named twice"):
        plan(PUBLISHED[0], ISOLATED, ["n1", "n1"])
