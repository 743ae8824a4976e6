"""Which node Kubernetes' scheduler would give a pod, by the rules that our manifests use.

Node labels, pod affinity and anti-affinity (also that of pods which are there already), and the
room for CPU. Anything else in a pod's affinity is refused, so that no rule is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwire.k8s.local_kubernetes.pods import NotForBox, Pod

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
