"""The pods of rendered manifests, and the nodes that a scheduler chooses for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwire.errors import TensorwireError
from tensorwire.k8s.job import Resources
from tensorwire.k8s.render import Manifest

_ROLE, _FIRST_TASK = "app.kubernetes.io/component", "tensorwire/first-task"


class NotForBox(TensorwireError):
    """This machine cannot run the manifests, or they ask for what the box does not know."""


@dataclass(frozen=True)
class Pod:
    """A pod as the Job controller makes it."""

    name: str
    """At which the others find it: "flights-ps-0-0.flights"."""
    job: str
    """Name of its Job."""
    member: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]
    retries: int = 0
    """The number of restarts after a failure; not for sidecars."""

    @property
    def task(self) -> str:
        """ "worker:3"."""
        return f"{self.labels[_ROLE]}:{int(self.annotations[_FIRST_TASK]) + self.member}"

    @property
    def is_sidecar(self) -> bool:
        """True if the task serves a main container, which ends it."""
        return "initContainers" in self.spec

    @property
    def task_container(self) -> Mapping[str, Any]:
        return task_container(self.spec)

    @property
    def affinity(self) -> Mapping[str, Any]:
        return self.spec.get("affinity") or {}

    @property
    def cpu(self) -> float:
        """Cores that its containers request."""
        containers = [*self.spec.get("initContainers", ()), *self.spec["containers"]]
        return sum(_cores(container, "requests") for container in containers)

    @property
    def cpu_limit(self) -> float:
        """Cores that its task may use."""
        return _cores(self.task_container, "limits")

    def port(self, name: str) -> int:
        """The task's port with this name."""
        ports = {each["name"]: each["containerPort"] for each in self.task_container["ports"]}
        return int(ports[name])


def by_kind(documents: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [d for d in documents if d["kind"] == kind]


def jobs_of(documents: Sequence[Manifest]) -> list[Manifest]:
    """The Jobs: those of a JobSet as its controller makes them."""
    jobs = by_kind(documents, "Job")
    for jobset in by_kind(documents, "JobSet"):
        for replicated in jobset["spec"]["replicatedJobs"]:
            for index in range(replicated["replicas"]):
                name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
                template = replicated["template"]
                metadata = {**template["metadata"], "name": name}
                jobs.append({"kind": "Job", "metadata": metadata, "spec": template["spec"]})
    return jobs


def pods_of(documents: Sequence[Manifest]) -> list[Pod]:
    """The pods of all Jobs, as the Job controller makes them."""
    return [pod for job in jobs_of(documents) for pod in _pods_of_job(job)]


def task_container(pod_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that is the task."""
    containers = [*pod_spec.get("initContainers", ()), *pod_spec["containers"]]
    found = [c for c in containers if c["name"] == "task"]
    if len(found) != 1:
        raise NotForBox("the lab runs pods with one container `task`")
    return found[0]  # type: ignore[no-any-return]


def _pods_of_job(job: Manifest) -> Iterator[Pod]:
    name, spec = job["metadata"]["name"], job["spec"]
    if spec.get("completionMode") != "Indexed" or spec["parallelism"] != spec["completions"]:
        raise NotForBox(f"the lab runs Jobs that are Indexed and whole at once: {name} is not")
    template = spec["template"]
    for member in range(spec["completions"]):
        yield Pod(
            name=f"{name}-{member}.{template['spec']['subdomain']}",
            job=name,
            member=member,
            labels=template["metadata"]["labels"],
            annotations=template["metadata"].get("annotations") or {},
            spec=template["spec"],
            retries=spec.get("backoffLimitPerIndex", spec.get("backoffLimit", 6)),
        )


def _cores(container: Mapping[str, Any], kind: str) -> float:
    resources = container["resources"][kind]
    return Resources(resources["cpu"], resources["memory"]).cores


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass
class Node:
    """A machine of a cluster, and what the scheduler has put there."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu: float = 64.0
    pods: list[Pod] = field(default_factory=list)


def feasible(pod: Pod, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that the scheduler may choose from."""
    return [node for node in nodes if _fits(pod, node, nodes)]


def schedule(pods: Sequence[Pod], nodes: Sequence[Node]) -> list[Pod]:
    """Places pods in their order, each as soon as it can be; returns those that fit nowhere.

    Among the nodes that may be chosen it takes the one with the fewest pods, as the scheduler's
    scores tend to.
    """
    waiting = list(pods)
    while True:
        left = []
        for pod in waiting:
            found = feasible(pod, nodes)
            if found:
                min(found, key=lambda node: len(node.pods)).pods.append(pod)
            else:
                left.append(pod)
        if not left or len(left) == len(waiting):
            return left
        waiting = left


def _fits(pod: Pod, node: Node, nodes: Sequence[Node]) -> bool:
    rules = pod.affinity
    _known(set(rules) <= {"nodeAffinity", "podAffinity", "podAntiAffinity"})
    if "nodeAffinity" in rules and not _node_matches(rules["nodeAffinity"], node):
        return False
    for term in _terms(rules, "podAffinity"):
        if any(_selects(term, other) for other in node.pods):
            continue
        # The first of a group that wants to be together may go anywhere.
        if not _selects(term, pod):
            return False
        if any(_selects(term, other) for each in nodes for other in each.pods):
            return False
    for term in _terms(rules, "podAntiAffinity"):
        if any(_selects(term, other) for other in node.pods):
            return False
    for other in node.pods:
        if any(_selects(term, pod) for term in _terms(other.affinity, "podAntiAffinity")):
            return False
    return sum(other.cpu for other in node.pods) + pod.cpu <= node.cpu + 1e-9


def _node_matches(affinity: Mapping[str, Any], node: Node) -> bool:
    _known(set(affinity) == {_REQUIRED})
    return any(
        all(_expression(e, node.labels) for e in term["matchExpressions"])
        for term in affinity[_REQUIRED]["nodeSelectorTerms"]
    )


def _terms(rules: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    if kind not in rules:
        return []
    _known(set(rules[kind]) == {_REQUIRED})
    for term in rules[kind][_REQUIRED]:
        _known(set(term) == {"labelSelector", "topologyKey"})
        _known(term["topologyKey"] == "kubernetes.io/hostname")
    return list(rules[kind][_REQUIRED])


def _selects(term: Mapping[str, Any], pod: Pod) -> bool:
    selector = term["labelSelector"]
    _known(set(selector) <= {"matchLabels", "matchExpressions"})
    return all(pod.labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        _expression(e, pod.labels) for e in selector.get("matchExpressions", ())
    )


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(expression["key"])
    if expression["operator"] == "In":
        return value in expression["values"]
    _known(expression["operator"] == "NotIn")
    return value not in expression["values"]


def _known(holds: bool) -> None:
    if not holds:
        raise NotForBox("a pod's affinity has rules that the lab's scheduler does not know")
