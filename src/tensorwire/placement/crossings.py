"""Which tensors cross between workers and ps, and for which variable: from a graph with devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensorwire.placement.traffic import Crossing

_HANDLES = ("VarHandleOp", "VariableV2", "Variable")
# They run when a training begins or is restored, not at every step.
_ONCE = ("AssignVariableOp", "Assign", "VarIsInitializedOp", "IsVariableInitialized")


def of_graph(graph: Any) -> list[Crossing]:
    """Every tensor of a ``tf.Graph`` that a step may move to or from a variable on a ps.

    What is colocated with a variable counts as on its ps, so that a graph without devices tells
    something too. One that two variables need crosses for each.
    """
    owners = _Owners(graph)
    found: dict[tuple[str, str, bool], Crossing] = {}
    for consumer in graph.get_operations():
        to_ps = owners.on_ps(consumer)
        if to_ps and consumer.type in _ONCE:
            continue
        for tensor in consumer.inputs:
            if owners.on_ps(tensor.op) == to_ps or tensor.op.type in _HANDLES:
                continue
            variable = owners.of(consumer if to_ps else tensor.op)
            if variable is not None:
                shape = None if tensor.shape.rank is None else tuple(_sizes(tensor.shape))
                crossing = Crossing(
                    tensor.op.name, variable, to_ps, shape, tensor.dtype.base_dtype.size or 0
                )
                found[tensor.name, variable, to_ps] = crossing
    return list(found.values())


def _sizes(shape: Any) -> Iterator[int]:
    return (-1 if size is None else size for size in shape.as_list())


class _Owners:
    """The variable that an operation on a ps works for."""

    def __init__(self, graph: Any) -> None:
        self._variables = {op.name for op in graph.get_operations() if op.type in _HANDLES}
        self._known: dict[str, str | None] = {}

    def on_ps(self, op: Any) -> bool:
        return "/job:ps" in op.device or self._beside(op) is not None

    def of(self, op: Any) -> str | None:
        """The nearest variable among what it needs on the ps, or else among what needs it."""
        if op.name not in self._known:
            self._known[op.name] = self._nearest(op, _producers) or self._nearest(op, _consumers)
        return self._known[op.name]

    def _beside(self, op: Any) -> str | None:
        """The variable that the operation is, reads or writes, or is colocated with."""
        if op.name in self._variables:
            return self._root(op)
        # TensorFlow runs it where the resource is, whatever its device says.
        handle = next((t.op for t in op.inputs if t.op.type == "VarHandleOp"), None)
        return self._root(op if handle is None else handle)

    def _root(self, op: Any) -> str | None:
        """Of a slot, the variable that it belongs to."""
        names = (group.decode().removeprefix("loc:@") for group in op.colocation_groups())
        own = op.name if op.name in self._variables else None
        return next((n for n in names if n in self._variables and n != op.name), own)

    def _nearest(self, op: Any, neighbours: Callable[[Any], Iterable[Any]]) -> str | None:
        queue, seen = [op], {op.name}
        for each in queue:  # grows while it is walked
            if (variable := self._beside(each)) is not None:
                return variable
            for other in neighbours(each):
                if other.name not in seen and self.on_ps(other):
                    seen.add(other.name)
                    queue.append(other)
        return None


def _producers(op: Any) -> list[Any]:
    return [tensor.op for tensor in op.inputs]


def _consumers(op: Any) -> list[Any]:
    return [consumer for tensor in op.outputs for consumer in tensor.consumers()]
