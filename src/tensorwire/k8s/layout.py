"""Which tasks share a node.

Tasks are placed by *group*: the tasks of one role that belong on one node together. Each group has
a pod template of its own, so that its affinity can name exactly the tasks (or the node's labels)
that it belongs to; a template for all workers could only spread them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorwire.errors import UsageError

COLOCATED, ISOLATED = "colocated", "isolated"
LAYOUTS = (COLOCATED, ISOLATED)
# The labels of the published test, spelled as it spells them: nodes that have them stay usable.
SCENARIO_LABEL, CASE_LABEL, INDEX_LABEL, TYPE_LABEL = "SCENCE", "CASE", "INDEX", "TYPE"
SCENARIOS = {COLOCATED: "1", ISOLATED: "2"}


@dataclass(frozen=True)
class Group:
    """The tasks `first` to `first + count - 1` of a role, which share a node."""

    role: str
    index: int
    first: int
    count: int


def split(role: str, tasks: int, per_node: int) -> tuple[Group, ...]:
    """A role's tasks, `per_node` to a group; the last group has what is left."""
    return tuple(
        Group(role, index, first, min(per_node, tasks - first))
        for index, first in enumerate(range(0, tasks, per_node))
    )


def workers_per_node(layout: str, workers: int, ps: int, wanted: int | None) -> int:
    """How many workers share a node; UsageError where the layout cannot be had with that."""
    per_node = wanted or (-(-workers // ps) if layout == COLOCATED else min(10, workers))
    servers = -(-workers // per_node)
    if layout == COLOCATED and servers != ps:
        raise UsageError(
            f"co-located, each node has one ps and {per_node} workers: {workers} workers need "
            f"{servers} ps, not {ps} (change --ps or --workers-per-node, or --layout isolated)"
        )
    return per_node


def servers(layout: str, groups: Sequence[Group]) -> int:
    """The number of nodes that the groups take."""
    of_role = {role: sum(1 for g in groups if g.role == role) for role in ("worker", "ps")}
    return of_role["worker"] + (of_role["ps"] if layout == ISOLATED else 0)


def node_labels(layout: str, case: str, groups: Sequence[Group]) -> list[dict[str, str]]:
    """The labels of each node that a labelled job takes: those of its workers, then of its ps.

    Co-located, a node is for the workers and the ps of the same index.
    """
    return [
        dict(group_labels(layout, case, group))
        for role in (("worker", "ps") if layout == ISOLATED else ("worker",))
        for group in groups
        if group.role == role
    ]


def group_labels(layout: str, case: str, group: Group) -> Mapping[str, str]:
    """The labels that a node needs for a group of a labelled job.

    A chief goes with the first workers.
    """
    labels = {
        SCENARIO_LABEL: SCENARIOS[layout],
        CASE_LABEL: case,
        INDEX_LABEL: str(group.index),
    }
    if layout == ISOLATED:
        labels[TYPE_LABEL] = "ps" if group.role == "ps" else "worker"
    return labels
