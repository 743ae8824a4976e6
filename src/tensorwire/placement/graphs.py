"""The variables of a graph, and the tensors that cross between tasks for them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from tensorwire.cluster import is_ps
from tensorwire.errors import UsageError
from tensorwire.placement.plan import Model, Variable
from tensorwire.placement.splits import getting_by, noting_splittable
from tensorwire.placement.traffic import PART, Crossing

_HANDLES = ("VarHandleOp", "VariableV2", "Variable")
# These run when training starts or is restored, not in every step.
_ONCE = ("AssignVariableOp", "Assign", "VarIsInitializedOp", "IsVariableInitialized")
# These change variables in every step: an optimizer's operations, counters and averages.
_UPDATE = re.compile(
    r"(Resource)?(Sparse)?Apply|(Resource)?Scatter|Assign(Add|Sub)|(\w+>)?\w*Table(Insert|Accum)"
)
# These take ids, or have one row per id; with the last two an optimizer sums over equal ids.
_BY_ROWS = re.compile(
    r"((Resource)?Gather|(Resource)?SparseApply|(Resource)?Scatter|Unique|UnsortedSegmentSum)"
)


def of_graph(graph: Any) -> list[Crossing]:
    """Every tensor of a ``tf.Graph`` that a step may move to or from a variable on a ps.

    Operations colocated with a variable count as on its ps, so this works for graphs without
    devices, too. A tensor that two variables need counts for both. If the graph updates variables,
    only operations that these updates need are part of a step, not saving or evaluation.
    """
    owners = _Owners(graph)
    found: dict[tuple[str, str, bool], Crossing] = {}
    for consumer in _of_a_step(graph):
        to_ps = owners.on_ps(consumer)
        if to_ps and consumer.type in _ONCE:
            continue
        for tensor in consumer.inputs:
            if owners.on_ps(tensor.op) == to_ps or owners.has(tensor.op):
                continue
            variable = owners.of(consumer if to_ps else tensor.op)
            if variable is not None:
                shape = None if tensor.shape.rank is None else tuple(_sizes(tensor.shape))
                is_by_rows = _BY_ROWS.match((consumer if to_ps else tensor.op).type)
                crossing = Crossing(
                    tensor.op.name,
                    variable,
                    to_ps,
                    shape,
                    tensor.dtype.base_dtype.size or 0,
                    owners.rows(variable) if is_by_rows else None,
                )
                found[tensor.name, variable, to_ps] = crossing
    return list(found.values())


def _of_a_step(graph: Any) -> list[Any]:
    """The operations of a training step, in the graph's order; all if nothing updates variables."""
    needed = [op for op in graph.get_operations() if _UPDATE.match(op.type)]
    seen = {op.name for op in needed}
    for op in needed:  # grows while it is walked
        for before in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if before.name not in seen:
                seen.add(before.name)
                needed.append(before)
    return [op for op in graph.get_operations() if not seen or op.name in seen]


def _sizes(shape: Any) -> Iterator[int]:
    return (-1 if size is None else size for size in shape.as_list())


class _Owners:
    """Finds the variable to which an operation on a ps belongs."""

    def __init__(self, graph: Any) -> None:
        self._variables = {op.name: op for op in graph.get_operations() if _is_variable(op)}
        self._known: dict[str, str | None] = {}

    def has(self, op: Any) -> bool:
        """Whether the operation is a variable, or the handle of one or of a table."""
        return op.name in self._variables

    def on_ps(self, op: Any) -> bool:
        return is_ps(op.device) or self._beside(op) is not None

    def of(self, op: Any) -> str | None:
        """The nearest variable among the op's inputs on the ps, or else among its consumers."""
        if op.name not in self._known:
            self._known[op.name] = self._nearest(op, _producers) or self._nearest(op, _consumers)
        return self._known[op.name]

    def rows(self, variable: str) -> int | None:
        """The first dimension of the variable; None for an unknown shape or a scalar."""
        shape = known_shape(self._variables[variable].node_def)
        return shape[0] if shape else None

    def _beside(self, op: Any) -> str | None:
        """The variable that the operation is, reads, writes, or is colocated with."""
        if op.name in self._variables:
            return self._root(op)
        # TensorFlow runs the operation where the resource is, not on the operation's own device.
        of_resources = (t.op for t in op.inputs if t.dtype.name == "resource")
        handle = next((each for each in of_resources if self.has(each)), None)
        return self._root(op if handle is None else handle)

    def _root(self, op: Any) -> str | None:
        """The variable to which a slot belongs."""
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


def _is_variable(op: Any) -> bool:
    # `node_def` makes a copy, so it is not asked of every operation of a graph.
    return op.type in _HANDLES or ("Table" in op.type and is_table(op.node_def))


def is_table(node: Any) -> bool:
    """Whether a node is the handle of a table that grows: TensorFlow's, or TFRA's."""
    is_fixed = node.op.startswith("HashTable")  # it is filled once, from a file
    return "key_dtype" in node.attr and "value_dtype" in node.attr and not is_fixed


def _producers(op: Any) -> list[Any]:
    return [tensor.op for tensor in op.inputs]


def _consumers(op: Any) -> list[Any]:
    return [consumer for tensor in op.outputs for consumer in tensor.consumers()]


_COLOCATED = b"loc:@"
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable", "AutoReloadVariable")


def variables_of(graph_def: Any, splittable: Collection[str] | None = None) -> list[Variable]:
    """The variables that ``replica_device_setter`` places, in its order, and tables that it leaves
    on the ps where the script puts them, such as TFRA's.

    Slots, and everything colocated with a variable, count as bytes of that variable. Tables and the
    like count 0 bytes, but are listed. `splittable`: the names of variables that can be split;
    None: all can.
    """
    from tensorflow.python.training.device_setter import STANDARD_PS_OPS

    nodes = {
        node.name: node
        for node in graph_def.node
        if node.op in STANDARD_PS_OPS or (is_table(node) and is_ps(node.device))
    }
    slot_bytes = dict.fromkeys(nodes, 0)
    roots = []
    for name, node in nodes.items():
        root = _root(name, nodes)
        if root == name:
            roots.append(name)
        else:
            slot_bytes[root] += value_bytes(node, known_shape(node) or (0,))
    return [
        _variable(
            nodes[name],
            slot_bytes[name],
            splittable is None or name in splittable,
            None if nodes[name].op in STANDARD_PS_OPS else _task_index(nodes[name].device),
        )
        for name in roots
    ]


def _root(name: str, nodes: dict[str, Any]) -> str:
    """The variable that `name` is colocated with, or itself."""
    seen = {name}
    while True:
        located = (each.removeprefix(_COLOCATED) for each in nodes[name].attr["_class"].list.s)
        other = next((n for each in located if (n := each.decode()) in nodes), name)
        if other in seen:
            return name
        seen.add(other)
        name = other


def _task_index(device: str) -> int:
    import tensorflow as tf

    return int(tf.DeviceSpec.from_string(device).task or 0)


def _variable(node: Any, slot_bytes: int, may_split: bool, ps: int | None) -> Variable:
    shape = known_shape(node)
    can_split = (
        may_split and bool(shape) and node.op in _VARIABLES and not PART.fullmatch(node.name)
    )
    item_bytes = value_bytes(node, ()) if shape is not None else 0
    return Variable(node.name, shape or (), item_bytes, slot_bytes, can_split, ps)


def known_shape(node: Any) -> tuple[int, ...] | None:
    """Shape of a variable's node, () of a table; None if it is not fully known."""
    if "shape" not in node.attr:  # reading a missing attribute would add it
        return ()
    shape = node.attr["shape"].shape
    sizes = tuple(dim.size for dim in shape.dim)
    return None if shape.unknown_rank or any(size < 0 for size in sizes) else sizes


def value_bytes(node: Any, shape: tuple[int, ...]) -> int:
    """Bytes of a value with this shape and the node's type; 0 for a table, which has no value."""
    import tensorflow as tf

    if "shape" not in node.attr:
        return 0
    return int(math.prod(shape) * (tf.dtypes.as_dtype(node.attr["dtype"].type).size or 0))


def model_of(graph: Any, splittable: Collection[str] | None = None) -> Model:
    """The variables of a ``tf.Graph`` (see `variables_of`) and the tensors that cross for them."""
    variables = variables_of(graph.as_graph_def(), splittable)
    return Model(tuple(variables), tuple(of_graph(graph)))


def model_of_function(build: Callable[[], Any]) -> Model:
    """The model that `build` makes. It is called once, in a graph that is discarded."""
    import tensorflow as tf

    seen: set[str] = set()
    with tf.Graph().as_default() as graph, getting_by(noting_splittable(seen)):
        build()
    return model_of(graph, seen)


def model_of_file(path: Path) -> Model:
    """Reads a SavedModel's folder, a MetaGraph (`.meta`) or a graph in text (`.pbtxt`).

    Raises:
        UsageError: the file is none of these, or its graph has no variables.
    """
    model = model_of_graph_def(_graph_def(path))
    if not model.variables:
        raise UsageError(f"the graph in {path} has no variables")
    return model


def model_of_graph_def(graph_def: Any) -> Model:
    """The model of a GraphDef; without crossings if the graph cannot be imported."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    try:
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
    except (ValueError, tf.errors.OpError):
        functions = {function.signature.name for function in graph_def.library.function}
        kinds = {node.op for node in graph_def.node} - functions
        unknown = sorted(kind for kind in kinds if op_def_registry.get(kind) is None)
        return Model(tuple(variables_of(graph_def)), unknown_operations=tuple(unknown))
    return model_of(graph)


def _graph_def(path: Path) -> Any:
    from google.protobuf import message, text_format
    from tensorflow.core.framework import graph_pb2
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

    if path.is_dir():
        path = next(
            (p for p in (path / "saved_model.pb", path / "graph.pbtxt") if p.exists()), path
        )
    elif not path.exists() and path.with_name(path.name + ".meta").exists():
        path = path.with_name(path.name + ".meta")  # the prefix of a checkpoint
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror}): "
            "give a SavedModel's folder, a .meta file or a graph.pbtxt"
        ) from error
    try:
        if path.name == "saved_model.pb":
            metas = saved_model_pb2.SavedModel.FromString(data).meta_graphs
            train = [m for m in metas if "train" in m.meta_info_def.tags]
            return (train or metas)[0].graph_def
        if path.suffix == ".pbtxt":
            return text_format.Parse(data.decode(), graph_pb2.GraphDef())
        return meta_graph_pb2.MetaGraphDef.FromString(data).graph_def
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError, IndexError) as error:
        raise UsageError(
            f"{path} is no graph: give a SavedModel's folder, a .meta file or a graph.pbtxt"
        ) from error
