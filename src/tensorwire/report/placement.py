"""Placement plans as a section: strategies side by side, loads of each ps, largest variables."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwire.placement import packing
from tensorwire.placement.plan import PlacementPlan, Variable
from tensorwire.report.section import Bar, Bars, Section, Table
from tensorwire.units import number

_SHOWN_VARIABLES = 30
_SHOWN_TASKS = 10
_UNEVEN = 1.5


def section(plans: Sequence[PlacementPlan], unknown_operations: Sequence[str] = ()) -> Section:
    """The section of `plans`: one plan per strategy, with the same variables and number of ps.

    `unknown_operations`: of the model (see `Model`).
    """
    worst, best = (choose(plans, key=_worst) for choose in (max, min))
    headline = (
        f"{best.strategy} leaves the fullest ps with {_worst(best):.2f} times the mean, "
        f"{worst.strategy} with {_worst(worst):.2f} times."
    )
    held = [plan.bytes_per_ps for plan in plans]
    moved = [load for plan in plans if (load := plan.traffic_per_ps) is not None]
    measures: list[tuple[str, str, Sequence[Sequence[float]]]]
    measures = [("Variables and slots on each ps", "MB", held)]
    if moved:
        measures.append(("Traffic of each ps", "MB a step", moved))
    return Section(
        title=f"{len(plans[0].variables)} variables on {plans[0].ps} ps",
        headline=headline if _worst(best) < _worst(worst) else "",
        charts=[_bars(title, unit, plans, loads) for title, unit, loads in measures],
        tables=[
            *(_tasks(f"{title}, {unit}", plans, loads) for title, unit, loads in measures),
            _variables(plans),
        ],
        notes=[*_notes(plans), *_unknown(unknown_operations)],
        warnings=[_blame(plan) for plan in plans if _worst(plan) > _UNEVEN],
    )


def _notes(plans: Sequence[PlacementPlan]) -> list[str]:
    said = []
    hidden = len(plans[0].variables) - _SHOWN_VARIABLES
    if hidden > 0:
        said.append(f"{hidden} smaller variables are not shown; --json has them all")
    if fixed := [v.name for v in plans[0].variables if v.ps is not None]:
        said.append(
            f"{len(fixed)} tables stay where the script puts them, and their size is not known: "
            f"{_some(fixed)}; `tensorwire top` shows it"
        )
    traffic = plans[0].traffic
    if traffic is not None and traffic.is_prediction:
        said.append(
            "traffic is predicted for one worker from the shapes in the graph; --traffic uses the "
            "traffic of a run instead, --batch sets dimensions that are unknown in the graph"
        )
    elif traffic is not None:
        unknown = [v.name for v in plans[0].variables if v.bytes and not traffic.knows(v.name)]
        if unknown:
            said.append(
                f"the traffic of {len(unknown)} variables is unknown and not counted: "
                f"{_some(unknown)}"
            )
    return said


def _unknown(kinds: Sequence[str]) -> list[str]:
    if not kinds:
        return []
    return [
        f"this TensorFlow does not have the operations {_some(kinds)}, so no traffic is predicted "
        "and variables of such operations (DeepRec's) are missing; --traffic uses a run's"
    ]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _worst(plan: PlacementPlan) -> float:
    """The larger imbalance (largest over mean) of bytes and traffic."""
    return max(plan.bytes_imbalance, plan.traffic_imbalance or 1.0)


def _blame(plan: PlacementPlan) -> str:
    """A sentence about the ps with the highest load and the variable that causes most of it."""
    by_traffic = (plan.traffic_imbalance or 0.0) > plan.bytes_imbalance
    loads = (plan.traffic_per_ps if by_traffic else None) or plan.bytes_per_ps
    fullest = loads.index(max(loads))
    weights = {
        part.name: (part.traffic_bytes_per_step or 0.0) if by_traffic else part.bytes
        for part in plan.parts
        if part.task == fullest
    }
    largest = max(weights, key=lambda name: weights[name])
    what, whole = ("traffic" if by_traffic else "bytes"), sum(loads)
    return (
        f"{plan.strategy}: ps:{fullest} carries {loads[fullest] / whole:.0%} of the {what}; "
        f"{largest} alone is {weights[largest] / whole:.0%}"
    )


def _bars(
    title: str, unit: str, plans: Sequence[PlacementPlan], loads: Sequence[Sequence[float]]
) -> Bars:
    bars = [
        Bar(f"{plan.strategy}, ps:{task}", load / 1e6, plan.strategy)
        for plan, of_plan in zip(plans, loads, strict=True)
        for task, load in enumerate(of_plan[:_SHOWN_TASKS])
    ]
    return Bars(title, unit, bars)


def _mb(value: float) -> str:
    return number(value / 1e6)


def _tasks(title: str, plans: Sequence[PlacementPlan], loads: Sequence[Sequence[float]]) -> Table:
    each = [[f"ps:{task}", *(_mb(load[task]) for load in loads)] for task in range(plans[0].ps)]
    means = [sum(load) / len(load) for load in loads]
    summary = [
        ["mean", *map(_mb, means)],
        ["largest/mean", *(f"{packing.imbalance(load):.2f}" for load in loads)],
        ["parts", *(str(len(plan.parts)) for plan in plans)],
    ]
    return Table(title, ["ps", *(plan.strategy for plan in plans)], [each, summary])


def _variables(plans: Sequence[PlacementPlan]) -> Table:
    traffic = plans[0].traffic
    columns = ["variable", "shape", "MB", *(["MB/step"] if traffic else [])]
    rows = []
    for variable in sorted(plans[0].variables, key=lambda v: -v.bytes)[:_SHOWN_VARIABLES]:
        row = [variable.name, " x ".join(map(str, variable.shape)) or "-", _mb(variable.bytes)]
        if traffic is not None:
            row.append(_mb(traffic.of(variable.name, variable.rows, 0, variable.rows)))
        rows.append([*row, *(_where(plan, variable) for plan in plans)])
    title = "The largest variables, with their slots, and their ps"
    return Table(title, [*columns, *(plan.strategy for plan in plans)], [rows])


def _where(plan: PlacementPlan, variable: Variable) -> str:
    """The ps of the parts in order of their rows: "0", or "5 parts: 0 1 2 3 4"."""
    tasks = plan.tasks[variable.name]
    if len(tasks) == 1:
        return str(tasks[0])
    more = " …" if len(tasks) > 10 else ""
    return f"{len(tasks)} parts: {' '.join(map(str, tasks[:10]))}{more}"
