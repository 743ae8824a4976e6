"""Layouts (which tasks share a node), the compared cases, and the labels of nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwire.dataclass_json import from_document
from tensorwire.errors import UsageError

if TYPE_CHECKING:
    from tensorwire.k8s.connection import Connection

COLOCATED, ISOLATED = "colocated", "isolated"
LAYOUTS = (COLOCATED, ISOLATED)
# The labels of the published test, in its spelling, so that nodes labelled for it can be used.
SCENARIO_LABEL, CASE_LABEL, INDEX_LABEL, TYPE_LABEL = "SCENCE", "CASE", "INDEX", "TYPE"
SCENARIOS = {COLOCATED: "1", ISOLATED: "2"}


@dataclass(frozen=True)
class Group:
    """The tasks `first` to `first + count - 1` of a role, which share a node."""

    role: str
    index: int
    first: int
    count: int

    def running(self, tasks: int) -> int:
        """How many of the group's tasks run if the first `tasks` of the role do."""
        return min(self.count, max(0, tasks - self.first))


def split(role: str, tasks: int, per_node: int) -> tuple[Group, ...]:
    """Splits a role's tasks into groups of `per_node`; the last group has the rest."""
    return tuple(
        Group(role, index, first, min(per_node, tasks - first))
        for index, first in enumerate(range(0, tasks, per_node))
    )


def workers_per_node(layout: str, workers: int, ps: int, wanted: int | None) -> int:
    """The number of workers that share a node; UsageError if the layout does not allow it."""
    per_node = wanted or (-(-workers // ps) if layout == COLOCATED else min(10, workers))
    servers = -(-workers // per_node)
    if layout == COLOCATED and servers != ps:
        raise UsageError(
            f"co-located, each node has one ps and {per_node} workers: {workers} workers need "
            f"{servers} ps, not {ps} (change --ps or --workers-per-node, or use --layout isolated)"
        )
    return per_node


def servers(layout: str, groups: Iterable[Group]) -> list[Group]:
    """A group of each node that a job needs: of the workers, and then, if isolated, of the ps.

    In the co-located layout, a node has the workers and the ps of the same index.
    """
    groups = list(groups)
    roles = ("worker", "ps") if layout == ISOLATED else ("worker",)
    return [group for role in roles for group in groups if group.role == role]


def group_labels(layout: str, case: str, group: Group) -> Mapping[str, str]:
    """The labels that a node needs for a group of a labelled job.

    A chief is placed with the first workers.
    """
    labels = {SCENARIO_LABEL: SCENARIOS[layout], CASE_LABEL: case, INDEX_LABEL: str(group.index)}
    if layout == ISOLATED:
        labels[TYPE_LABEL] = "ps" if group.role == "ps" else "worker"
    return labels


_FORM = "cases: [{name: small, workers: 4, ps: 2, workers_per_node: 2}]"


@dataclass(frozen=True)
class JobCase:
    """Numbers of tasks, for either layout."""

    name: str
    workers: int
    ps: int
    workers_per_node: int = 10

    def __post_init__(self) -> None:
        if not self.name or min(self.workers, self.ps, self.workers_per_node) < 1:
            raise UsageError(f"case {self.name}: it needs a name, and numbers from 1")

    @property
    def groups(self) -> tuple[Group, ...]:
        """The tasks that share a server: of the workers, and each ps alone."""
        workers = split("worker", self.workers, self.workers_per_node)
        return (*workers, *split("ps", self.ps, 1))


# From a test of TensorFlow 1.3 on Kubernetes with ten workers per server.
PUBLISHED = (
    JobCase("1", 10, 1, 10),
    JobCase("2", 50, 5, 10),
    JobCase("3", 100, 10, 10),
    JobCase("4", 200, 20, 10),
)


def known_cases(path: Path | None) -> tuple[JobCase, ...]:
    """The published cases, and those of a user's file.

    Raises:
        UsageError: what is wrong with the file, and its form.
    """
    if path is None:
        return PUBLISHED
    try:
        import yaml  # which only tensorwire[k8s] brings, and `plan --case 1` does not need

        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML ({_one_line(error)}); its form: {_FORM}") from None
    entries = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise UsageError(f"{path} has no list `cases`; its form: {_FORM}")
    try:
        cases = (*PUBLISHED, *map(_case, entries))
    except (ValueError, UsageError) as error:
        raise UsageError(f"{path}: {error}; its form: {_FORM}") from None
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: there are several cases {name}: use different names")
    return cases


def find_case(
    name: str, cases: tuple[JobCase, ...], hint: str = " (--cases FILE adds your own)"
) -> JobCase:
    """The case of that name. UsageError lists the known cases, and ends with the hint."""
    for case in cases:
        if case.name == name:
            return case
    known = ", ".join(case.name for case in cases)
    raise UsageError(f"there is no case {name}; there are {known}{hint}")


def _case(entry: Any) -> JobCase:
    if not isinstance(entry, dict):
        raise ValueError(f"{entry!r} is no case")
    if unknown := entry.keys() - {field.name for field in fields(JobCase)}:
        raise ValueError(f"case {entry.get('name')}: unknown {', '.join(sorted(unknown))}")
    # YAML reads the name 1 as a number.
    named = {"name": str(entry["name"])} if entry.get("name") else {}
    return from_document(JobCase, {**entry, **named})


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


Labels = Mapping[str, str | None]
"""Labels of a node; the value None removes a label."""

_ALL = (SCENARIO_LABEL, CASE_LABEL, INDEX_LABEL, TYPE_LABEL)


def plan_labels(
    case: JobCase, layout: str, nodes: Sequence[str], *, remove: bool = False
) -> dict[str, Labels]:
    """The labels to set on each node, and to remove from nodes of another case.

    Raises:
        UsageError: there are too few nodes, or one is named twice.
    """
    wanted = [group_labels(layout, case.name, group) for group in servers(layout, case.groups)]
    if len(set(nodes)) < len(nodes):
        raise UsageError("a node is named twice: each node is one server of the case")
    none: Labels = dict.fromkeys(_ALL)
    if remove:
        return dict.fromkeys(nodes, none)
    if len(nodes) < len(wanted):
        raise UsageError(f"case {case.name}, {layout}, needs {len(wanted)} nodes, not {len(nodes)}")
    return {node: {**none, **labels} for node, labels in zip(nodes, wanted, strict=False)}


def label_command(node: str, labels: Labels) -> str:
    """The kubectl command that sets and removes these labels."""
    words = [f"{key}-" if value is None else f"{key}={value}" for key, value in labels.items()]
    return shlex.join(["kubectl", "label", "node", node, "--overwrite", *words])


def apply_labels(connection: Connection, wanted: Mapping[str, Labels]) -> None:
    """Labels the nodes. Raises TensorwireError if a node does not exist or may not be labelled."""
    for node, labels in wanted.items():
        with connection.explained():
            connection.core.patch_node(node, {"metadata": {"labels": dict(labels)}})
