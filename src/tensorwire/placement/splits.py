"""Creates variables in the parts of a plan, without changes to the code that creates them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tensorwire.placement.plan import PlacementPlan

_OURS = "_tensorwire_rows_in_order"


Getter = Callable[..., Any]
"""A ``custom_getter`` of ``tf.compat.v1.variable_scope``."""


@contextmanager
def splitting(plan: PlacementPlan) -> Iterator[None]:
    """In this scope, ``tf.compat.v1.get_variable`` splits variables as `plan` says."""
    look_up_in_order()
    with getting_by(splitter(plan)):
        yield


@contextmanager
def getting_by(getter: Getter) -> Iterator[None]:
    """In this scope, ``tf.compat.v1.get_variable`` uses `getter`."""
    import tensorflow as tf

    v1 = tf.compat.v1
    scope = v1.get_variable_scope()
    with v1.variable_scope(scope, custom_getter=getter, auxiliary_name_scope=False):
        yield


def get_all_by(getter: Getter) -> None:
    """Makes ``tf.compat.v1.get_variable`` use `getter` in this process from now on."""
    from tensorflow.python.ops import variable_scope

    get_variable = variable_scope._VariableStore.get_variable

    @functools.wraps(get_variable)
    def get_by_getter(store: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        return getter(functools.partial(get_variable, store), name, *args, **kwargs)

    variable_scope._VariableStore.get_variable = get_by_getter


def noting_splittable(names: set[str]) -> Getter:
    """Adds the names of variables that ``get_variable`` makes, because only these can be split."""

    def noting(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("partitioner") is None:
            names.add(name)
        return getter(name, *args, **kwargs)

    return noting


def splitter(plan: PlacementPlan) -> Getter:
    """A ``custom_getter`` that partitions by name. The user's own partitioner has priority."""

    def get_split(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        count = len(plan.tasks.get(name, ()))
        if count <= 1 or kwargs.get("partitioner") is not None:
            return getter(name, *args, **kwargs)
        kwargs["partitioner"] = lambda shape, dtype: [count] + [1] * (shape.rank - 1)
        variable = getter(name, *args, **kwargs)
        for part in variable:
            setattr(part, _OURS, True)
        variable.__class__ = _split_class()
        return variable

    return get_split


@functools.cache
def _split_class() -> Any:
    """The class of split variables, for scripts that do not know of the split."""
    import tensorflow as tf
    from tensorflow.python.ops import variables

    class SplitVariable(variables.PartitionedVariable):  # type: ignore[misc]
        """A PartitionedVariable whose updates are one operation, like those of a variable."""

        def _apply_assign_fn(self, assign_fn: Any, value: Any) -> Any:
            return tf.group(super()._apply_assign_fn(assign_fn, value))

        def __getattr__(self, name: str) -> Any:
            own = vars(self).get("_name")  # a copy does not have it yet
            raise AttributeError(
                f"{own} was split by its placement, so it has no {name!r}: do not split it "
                f"(tensorwire run --keep-whole {own}, or balanced(..., keep_whole=[{own!r}]))"
            )

    return SplitVariable


def look_up_in_order() -> None:
    """Makes look-ups find row i of a split variable at row i of its parts in order.

    By default, ``tf.compat.v1.nn.embedding_lookup`` assigns row i to part i modulo the number of
    parts ("mod"). Then checkpoints of split and of whole variables would not be interchangeable. A
    script written for a whole variable does not expect that.
    """
    from tensorflow.python.ops import embedding_ops

    look_up = embedding_ops._embedding_lookup_and_transform
    if hasattr(look_up, _OURS):
        return

    @functools.wraps(look_up)
    def in_order(params: Any, ids: Any, partition_strategy: str = "mod", **kwargs: Any) -> Any:
        if _is_split_by_us(params):
            partition_strategy = "div"
        return look_up(params, ids, partition_strategy, **kwargs)

    setattr(in_order, _OURS, True)
    embedding_ops._embedding_lookup_and_transform = in_order


def _is_split_by_us(params: Any) -> bool:
    from tensorflow.python.ops import variables

    if not isinstance(params, (list, tuple, variables.PartitionedVariable)):
        return False
    parts = list(params)
    return bool(parts) and all(hasattr(part, _OURS) for part in parts)
