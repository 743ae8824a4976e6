"""Where variables are, from what `tensorwire place` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwire.doctor.evidence import PlacedPart, Placement
from tensorwire.errors import UsageError
from tensorwire.placement.plan import PlacementPlan


def placement_of_document(document: Any, source: str) -> Placement:
    """Of one plan, or of the only plan among `plans`.

    Raises:
        UsageError: the document has none, or several.
    """
    if isinstance(document, Mapping) and "plans" in document:
        plans = document["plans"]
        if len(plans) != 1:
            raise UsageError(f"{source} has {len(plans)} plans: keep one, with --strategy")
        document = plans[0]
    return placement_of_plan(PlacementPlan.from_document(document), source)


def placement_of_plan(plan: PlacementPlan, source: str) -> Placement:
    """Where a strategy puts the variables of `source`."""
    return Placement(
        source=f"{plan.strategy.replace('_', ' ')} of {source}",
        ps=plan.ps,
        parts=tuple(PlacedPart(part.variable, part.task, part.bytes) for part in plan.parts),
    )
