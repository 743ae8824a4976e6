"""Strategies for ``tf.compat.v1.train.replica_device_setter(ps_strategy=…)``.

A strategy is called with each operation that belongs on a ps, in the order of the graph. It returns
the index of the ps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwire.placement.plan import PlacementPlan


class RoundRobinStrategy:
    """Places one ps after the other, as TensorFlow does by default."""

    def __init__(self, num_tasks: int) -> None:
        self._tasks = _at_least_one(num_tasks)
        self._next = 0

    def __call__(self, op: Any) -> int:
        task = self._next
        self._next = (task + 1) % self._tasks
        return task


def byte_size_load_fn(op: Any) -> float:
    """The bytes of a variable's value; 0 for operations without a shape, such as tables.

    Raises:
        ValueError: the variable's shape is not fully known.
    """
    from tensorwire.placement import graphs

    node = getattr(op, "node_def", op)
    if "shape" not in node.attr:
        return 0.0
    shape = graphs.known_shape(node)
    if shape is None:
        raise ValueError(f"the shape of {op.name} is not known when it is made")
    return float(graphs.value_bytes(node, shape))


class GreedyLoadBalancingStrategy:
    """Each operation goes to the ps with the smallest load so far.

    `load_fn` returns the load that an operation adds to its ps, in bytes or any other unit.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Any], float] = byte_size_load_fn) -> None:
        self._loads = [0.0] * _at_least_one(num_tasks)
        self._load_fn = load_fn

    def __call__(self, op: Any) -> int:
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_fn(op)
        return task


class PlannedStrategy:
    """Places variables by a plan, and all others on the ps with the fewest bytes."""

    def __init__(self, plan: PlacementPlan) -> None:
        self._tasks = {part.name: part.task for part in plan.parts}
        self._loads = plan.bytes_per_ps

    def __call__(self, op: Any) -> int:
        task = self._tasks.get(op.name)
        if task is None:
            task = self._loads.index(min(self._loads))
            self._loads[task] += byte_size_load_fn(op)
        return task


def _at_least_one(num_tasks: int) -> int:
    if num_tasks < 1:
        raise ValueError(f"{num_tasks} ps: a strategy needs at least one")
    return num_tasks
