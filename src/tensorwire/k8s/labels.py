"""Labels for the nodes of a case, as `--scheduling labels` looks for them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensorwire.errors import UsageError
from tensorwire.k8s import layout as layouts
from tensorwire.k8s.cases import JobCase

if TYPE_CHECKING:
    from tensorwire.k8s.connection import Connection

Labels = Mapping[str, str | None]
"""None takes a label away."""

_ALL = (layouts.SCENARIO_LABEL, layouts.CASE_LABEL, layouts.INDEX_LABEL, layouts.TYPE_LABEL)


def plan(
    case: JobCase, layout: str, nodes: Sequence[str], *, remove: bool = False
) -> dict[str, Labels]:
    """Which node gets which labels; those of another case that a node may have go.

    Raises:
        UsageError: there are too few nodes, or one is named twice.
    """
    groups = (
        *layouts.split("worker", case.workers, case.workers_per_node),
        *layouts.split("ps", case.ps, 1),
    )
    wanted = layouts.node_labels(layout, case.name, groups)
    if len(set(nodes)) < len(nodes):
        raise UsageError("a node is named twice: each is one server of the case")
    none: Labels = dict.fromkeys(_ALL)
    if remove:
        return dict.fromkeys(nodes, none)
    if len(nodes) < len(wanted):
        raise UsageError(f"case {case.name}, {layout}, takes {len(wanted)} nodes, not {len(nodes)}")
    return {node: {**none, **labels} for node, labels in zip(nodes, wanted, strict=False)}


def command(node: str, labels: Labels) -> str:
    """The kubectl command that does it."""
    words = [f"{key}-" if value is None else f"{key}={value}" for key, value in labels.items()]
    return shlex.join(["kubectl", "label", "node", node, "--overwrite", *words])


def apply_labels(connection: Connection, wanted: Mapping[str, Labels]) -> None:
    """Raises TensorwireError where a node is not there or may not be labelled."""
    for node, labels in wanted.items():
        with connection.explained():
            connection.core.patch_node(node, {"metadata": {"labels": dict(labels)}})
