"""Placement plans: the number of parts of each variable, and the ps of each part."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorwire.dataclass_json import from_document
from tensorwire.errors import UsageError
from tensorwire.placement import packing
from tensorwire.placement.packing import Load
from tensorwire.placement.traffic import Crossing, Traffic, row_bounds

# The message of a smaller part costs more than the part relieves a ps.
MIN_PART_BYTES = 128 << 10
# Largest over mean load that is good enough; more parts would cost messages without a benefit.
TOLERANCE = 1.1
_PARTS_PER_PS = 8
_MOST_NAMES = 8  # in an error message


@dataclass(frozen=True)
class Variable:
    """A variable of the graph, with the slots that an optimizer keeps for it."""

    name: str
    shape: tuple[int, ...]
    item_bytes: int
    slot_bytes: int = 0
    """Bytes of colocated variables; their parts are on the same ps as the variable's parts."""
    can_split: bool = True
    ps: int | None = None
    """The ps on which the script has put it for good; None if placement decides."""

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes + self.slot_bytes


@dataclass(frozen=True)
class Model:
    """The content of a graph: its variables, and the tensors that cross for them."""

    variables: tuple[Variable, ...]
    crossings: tuple[Crossing, ...] = ()
    unknown_operations: tuple[str, ...] = ()
    """Kinds of operations that this TensorFlow does not have; then there are no crossings."""


@dataclass(frozen=True)
class VariablePart:
    """Some rows of a variable, on one ps."""

    variable: str
    index: int
    of: int
    task: int
    bytes: float
    traffic_bytes_per_step: float | None

    @property
    def name(self) -> str:
        """The part's name in TensorFlow."""
        return f"{self.variable}/part_{self.index}" if self.of > 1 else self.variable


@dataclass(frozen=True)
class PlacementPlan:
    """The ps of each variable; `tasks[name]` has the ps of each part, in order of rows."""

    strategy: str
    ps: int
    variables: tuple[Variable, ...]
    tasks: Mapping[str, tuple[int, ...]]
    traffic: Traffic | None = None

    @cached_property
    def parts(self) -> list[VariablePart]:
        """All parts of variables, in the order of the graph."""
        return [
            part for v in self.variables for part in _parts(v, self.tasks[v.name], self.traffic)
        ]

    @property
    def bytes_per_ps(self) -> list[float]:
        return self._sum(lambda part: part.bytes)

    @property
    def traffic_per_ps(self) -> list[float] | None:
        """Bytes per step; None if the traffic is unknown."""
        if self.traffic is None:
            return None
        return self._sum(lambda part: part.traffic_bytes_per_step or 0.0)

    def _sum(self, value: Callable[[VariablePart], float]) -> list[float]:
        sums = [0.0] * self.ps
        for part in self.parts:
            sums[part.task] += value(part)
        return sums

    @property
    def bytes_imbalance(self) -> float:
        """Largest over mean."""
        return packing.imbalance(self.bytes_per_ps)

    @property
    def traffic_imbalance(self) -> float | None:
        return None if self.traffic_per_ps is None else packing.imbalance(self.traffic_per_ps)

    def to_document(self) -> dict[str, Any]:
        """The plan and the load of each ps, for JSON."""
        return {
            "strategy": self.strategy,
            "ps": self.ps,
            "bytes_per_ps": [round(each) for each in self.bytes_per_ps],
            "bytes_largest_over_mean": round(self.bytes_imbalance, 4),
            **(
                {
                    "traffic_bytes_per_step_per_ps": self.traffic_per_ps,
                    "traffic_largest_over_mean": round(self.traffic_imbalance or 1.0, 4),
                }
                if self.traffic_per_ps is not None
                else {}
            ),
            "variables": [
                {**dataclasses.asdict(each), "tasks": list(self.tasks[each.name])}
                for each in self.variables
            ],
        }

    @staticmethod
    def from_document(document: Mapping[str, Any], source: str = "this file") -> PlacementPlan:
        """Reads what `to_document` wrote, without the traffic. `source` names it in an error.

        Raises:
            UsageError: the document is not a plan.
        """
        try:
            variables = from_document(tuple[Variable, ...], document["variables"])
            tasks = {entry["name"]: tuple(entry["tasks"]) for entry in document["variables"]}
            ps = int(document["ps"])
            if not all(t and all(0 <= task < ps for task in t) for t in tasks.values()):
                raise ValueError("a variable has no ps, or a ps that does not exist")
            return PlacementPlan(str(document["strategy"]), ps, variables, tasks)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{source} is not a placement plan, which `tensorwire place --json` writes"
            ) from error


def whole(variables: Sequence[Variable], patterns: Sequence[str]) -> tuple[Variable, ...]:
    """The variables; those that match a shell pattern are marked as not to be split.

    Raises:
        UsageError: a pattern matches no variable.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(each.name, pattern) for each in variables):
            names = ", ".join(each.name for each in variables[:_MOST_NAMES])
            more = ", …" if len(variables) > _MOST_NAMES else ""
            raise UsageError(f"no variable is named {pattern}: there are {names}{more}")
    return tuple(
        dataclasses.replace(each, can_split=False)
        if any(fnmatch.fnmatchcase(each.name, pattern) for pattern in patterns)
        else each
        for each in variables
    )


def round_robin(
    variables: Sequence[Variable], ps: int, traffic: Traffic | None = None
) -> PlacementPlan:
    """TensorFlow's default: places variables on the ps in turn, regardless of their size."""
    places = packing.round_robin(len(variables), ps, _fixed(variables, ps))
    return _whole("round_robin", variables, ps, places, traffic)


def greedy(variables: Sequence[Variable], ps: int, traffic: Traffic | None = None) -> PlacementPlan:
    """Places each variable, in the order of the graph, on the ps with the fewest bytes so far."""
    loads = [(float(v.bytes),) for v in variables]
    places = packing.greedy(loads, ps, _fixed(variables, ps))
    return _whole("greedy", variables, ps, places, traffic)


def balanced(
    variables: Sequence[Variable],
    ps: int,
    traffic: Traffic | None = None,
    *,
    tolerance: float = TOLERANCE,
    min_part_bytes: int = MIN_PART_BYTES,
) -> PlacementPlan:
    """Splits variables above a fair share and packs the largest first; all must be known.

    Then, while a ps has more than `tolerance` times the mean, the largest variable on the fullest
    such ps that can be split further gets one more part. So there are no more parts than needed.
    With `traffic`, measured or predicted, bytes and traffic are both balanced. No part is smaller
    than `min_part_bytes`.
    """
    limits = {v.name: _most_parts(v, ps, min_part_bytes) for v in variables}
    of_name = {v.name: v for v in variables}
    counts = _fair_counts(variables, ps, traffic, limits)
    best: tuple[tuple[float, float], dict[str, tuple[int, ...]]] | None = None
    in_vain = 0
    while in_vain <= _PARTS_PER_PS * ps:
        items = [part for v in variables for part in _parts(v, (0,) * counts[v.name], traffic)]
        loads = [_load(part) for part in items]
        fixed = _fixed([of_name[part.variable] for part in items], ps)
        places = packing.longest_first(loads, ps, fixed)
        held = packing.fill(loads, places, ps)
        uneven = packing.unevenness(held)
        if best is None or uneven < best[0]:
            best, in_vain = (uneven, _tasks(items, places)), 0
        else:
            in_vain += 1
        growing = (
            items[i].variable
            for place, dimension in packing.too_full(held, tolerance)
            for i in sorted(
                (i for i, at in enumerate(places) if at == place),
                key=lambda i: (-loads[i][dimension], i),
            )
            if loads[i][dimension] and counts[items[i].variable] < limits[items[i].variable]
        )
        name = next(growing, None)
        if name is None:
            break
        counts[name] += 1
    assert best is not None
    return PlacementPlan("balanced", ps, tuple(variables), best[1], traffic)


STRATEGIES: Mapping[str, Callable[[Sequence[Variable], int, Traffic | None], PlacementPlan]] = {
    "round_robin": round_robin,
    "greedy": greedy,
    "balanced": balanced,
}


def _fixed(variables: Sequence[Variable], ps: int) -> dict[int, int]:
    """The ps of those that are not to be placed, by their index; modulo, if there are fewer ps."""
    return {index: v.ps % ps for index, v in enumerate(variables) if v.ps is not None}


def _whole(
    strategy: str,
    variables: Sequence[Variable],
    ps: int,
    places: Sequence[int],
    traffic: Traffic | None,
) -> PlacementPlan:
    tasks = {v.name: (place,) for v, place in zip(variables, places, strict=True)}
    return PlacementPlan(strategy, ps, tuple(variables), tasks, traffic)


def _parts(variable: Variable, tasks: Sequence[int], traffic: Traffic | None) -> list[VariablePart]:
    rows = variable.rows
    bounds = [(0, rows)] if len(tasks) == 1 else row_bounds(rows, len(tasks))
    return [
        VariablePart(
            variable.name,
            index,
            len(tasks),
            task,
            variable.bytes * (end - first) / max(rows, 1),
            None if traffic is None else traffic.of(variable.name, rows, first, end),
        )
        for index, (task, (first, end)) in enumerate(zip(tasks, bounds, strict=True))
    ]


def _load(part: VariablePart) -> Load:
    if part.traffic_bytes_per_step is None:
        return (part.bytes,)
    return (part.bytes, part.traffic_bytes_per_step)


def _tasks(items: Sequence[VariablePart], places: Sequence[int]) -> dict[str, tuple[int, ...]]:
    tasks: dict[str, tuple[int, ...]] = {}
    for part, place in zip(items, places, strict=True):
        tasks[part.variable] = (*tasks.get(part.variable, ()), place)
    return tasks


def _most_parts(variable: Variable, ps: int, min_part_bytes: int) -> int:
    if not variable.can_split or variable.ps is not None:
        return 1
    by_bytes = variable.bytes // max(min_part_bytes, 1)
    return max(1, min(variable.rows, by_bytes, _PARTS_PER_PS * ps))


def _fair_counts(
    variables: Sequence[Variable], ps: int, traffic: Traffic | None, limits: Mapping[str, int]
) -> dict[str, int]:
    """The initial number of parts: the fair shares, of bytes or of traffic, in each variable."""
    whole = [_load(_parts(v, (0,), traffic)[0]) for v in variables]
    totals = [sum(each) for each in zip(*whole, strict=True)]
    counts = {}
    for variable, load in zip(variables, whole, strict=True):
        share = max((x / t for x, t in zip(load, totals, strict=True) if t), default=0.0)
        counts[variable.name] = min(limits[variable.name], max(1, math.ceil(share * ps - 1e-9)))
    return counts
