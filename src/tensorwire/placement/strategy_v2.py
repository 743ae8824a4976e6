"""Makes ``tf.distribute.ParameterServerStrategy`` follow a plan.

The strategy itself partitions by shape alone and uses the ps in turn. Two methods of its `extended`
decide this; here they are replaced by methods that first determine the variable's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tensorwire.placement.plan import PlacementPlan


class Names:
    """Unique names for variables, by the order of their creation; names of TF2 are not unique."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def next(self, kwargs: Mapping[str, Any]) -> str:
        """Name of the variable that a variable creator is about to make with these arguments."""
        import tensorflow as tf

        scope = tf.get_current_name_scope()
        name = "/".join(filter(None, (scope, kwargs.get("name") or "Variable")))
        count = self._seen[name] = self._seen.get(name, -1) + 1
        return f"{name}_{count}" if count else name


def is_placed(kwargs: Mapping[str, Any]) -> bool:
    """True if a variable with these arguments gets its own ps, and not that of another variable."""
    return "colocate_with" not in kwargs and not kwargs.get("per_worker_variable")


def attach(extended: Any, plan: PlacementPlan) -> None:
    """Makes the strategy of `extended` split and place the variables that it makes from now on.

    Variables that the plan does not name go to the ps with the fewest planned bytes. If the user
    has set a `variable_partitioner`, it decides about splitting, and the plan only about the ps.
    """
    placer = _Placer(extended, plan)
    extended._create_variable = placer.create_variable
    extended._create_variable_round_robin = placer.create_one


class _Placer:
    def __init__(self, extended: Any, plan: PlacementPlan) -> None:
        self._extended = extended
        self._plan = plan
        self._names = Names()
        # TensorFlow's own methods, not those of an earlier plan: the last plan counts.
        own = type(extended)
        self._create: Callable[..., Any] = partial(own._create_variable, extended)
        self._create_one: Callable[..., Any] = partial(own._create_variable_round_robin, extended)
        self._loads = plan.bytes_per_ps
        self._pending: list[int] = []

    def create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        if not is_placed(kwargs):
            return self._create(next_creator, **kwargs)
        tasks = self._plan.tasks.get(self._names.next(kwargs), ())
        self._pending = list(tasks)
        own = self._extended._variable_partitioner
        if own is None and len(tasks) > 1:
            self._extended._variable_partitioner = lambda shape, dtype: (
                [len(tasks)] + [1] * (shape.rank - 1)
            )
        try:
            return self._create(next_creator, **kwargs)
        finally:
            self._extended._variable_partitioner = own

    def create_one(self, next_creator: Any, **kwargs: Any) -> Any:
        """Creates a whole variable, or the next part of one: parts are created in order."""
        task = self._pending.pop(0) if self._pending else self._loads.index(min(self._loads))
        # TensorFlow's method uses the ps with this number modulo the number of ps.
        self._extended._variable_count = task
        variable = self._create_one(next_creator, **kwargs)
        if not self._pending:
            self._loads[task] += variable.shape.num_elements() * variable.dtype.size
        return variable
