"""The nodes of a program as operations of TensorFlow: in a graph, in a function or one by one.

Every value is an exact vector that depends on the step's number and on all inputs of the node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from .program import Node, Program

tf1 = tf.compat.v1
_raw = tf.raw_ops

FAN = 24
"""Small tensors that one node sends between two devices."""
_PERIOD = 251
SLOW = 60_000
"""Elements whose sorting takes some milliseconds."""
_WHOLE = 1025
"""The largest tensor that is fetched whole; larger ones are fetched as a digest."""


class Tensors:
    """The values that the nodes of a program compute in one step.

    Shared resources are in the container `tag`, which no other program has.
    """

    def __init__(self, program: Program, tag: str, step: Any) -> None:
        """`step`: its number, an int32 scalar."""
        self._program = program
        self._tag = tag
        self._step = step
        self._values: list[Any] = []
        for index, node in enumerate(program.nodes):
            after = [self._values[each] for each in node.after]
            with tf.control_dependencies(after), tf.device(node.devices[0]):
                self._values.append(self._made(index, node))

    def fetches(self, wanted: tuple[int, ...]) -> list[Any]:
        found = []
        for index in wanted:
            node = self._program.nodes[index]
            if node.size <= _WHOLE:
                found.append(self._values[index])
            else:
                with tf.device(node.devices[2]):
                    found.append(digest(self._values[index]))
        return found

    def gate(self) -> Any:
        """A tensor that another device waits for and that is never made."""
        first = self._program.nodes[0]
        with tf.device(first.devices[0]):
            never = _raw.QueueDequeueV2(
                handle=self._queue(f"{self._tag}-gate", tf.int32), component_types=[tf.int32]
            )[0]
        with tf.device(first.devices[3]):
            return tf.reshape(never, [-1])[:1] + 1

    def _queue(self, name: str, dtype: Any, capacity: int = -1) -> Any:
        return _raw.FIFOQueueV2(
            component_types=[dtype],
            shapes=[],
            capacity=capacity,
            container=self._tag,
            shared_name=name,
        )

    def _variable(self, name: str, dtype: Any) -> Any:
        return _raw.VarHandleOp(
            dtype=dtype, shape=tf.TensorShape(None), container=self._tag, shared_name=name
        )

    def _made(self, index: int, node: Node) -> Any:
        values = [self._values[each] for each in node.inputs]
        name = f"{self._tag}-{index}"
        if node.kind == "source":
            return self._source(node)
        if node.kind == "error":
            return self._error(node, values[0], name)
        if node.kind in _STORED:
            return _STORED[node.kind](self, node, values, name)
        return _COMPUTED[node.kind](node, values, self._step)

    def _source(self, node: Node) -> Any:
        # The number of elements is unknown to optimizers; for every third source it depends on the
        # step.
        more = self._step % 3 if node.salt % 3 == 0 else self._step // 1000
        numbers = (tf.range(node.size + more) * 7 + self._step * 13 + node.salt) % _PERIOD
        return of_type(numbers, tf.as_dtype(node.dtype), node.salt)

    def _error(self, node: Node, value: Any, name: str) -> Any:
        """An error in every third step, or in every step."""
        fires = tf.equal((self._step + node.salt + tf.size(value) * 0) % 3, 0)
        if node.error == "closed queue":
            queue = self._queue(name, tf.int32)
            with tf.control_dependencies([_raw.QueueCloseV2(handle=queue)]):
                found = _raw.QueueDequeueV2(handle=queue, component_types=[tf.int32])[0]
        elif node.error == "unset":
            found = _raw.ReadVariableOp(resource=self._variable(name, tf.int32), dtype=tf.int32)
        elif node.error == "row":
            ids = tf.stack([1, 1, tf.where(fires, 9, 1), 0])
            with tf.device(node.devices[2]):
                rows = tf.gather(tf.constant([1, 2, 3, 4]), ids)
            found = rows[0]
        else:
            found = _ERRORS[node.error](fires)
        with tf.device(node.devices[1]):
            return tf.reshape(tf.cast(found, tf.int32), [-1])[:1] + 1

    def _assigned(self, node: Node, values: list[Any], name: str) -> Any:
        """A variable that one device writes and another one reads."""
        value = changed(values[0], node.size)
        with tf.device(node.devices[1]):
            handle = self._variable(name, value.dtype)
            write = _raw.AssignVariableOp(resource=handle, value=value)
            with control(write):
                read = _raw.ReadVariableOp(resource=handle, dtype=value.dtype)
        with tf.device(node.devices[2]):
            return changed(read, node.size)

    def _counted(self, node: Node, values: list[Any], name: str) -> Any:
        """A variable that accumulates over all steps in which it was fetched."""
        grown = tf.cast(tf.size(values[0]) + self._step, tf.int64)
        with tf.device(node.devices[1]):
            handle = self._variable(name, tf.int64)
            is_new = tf.logical_not(_raw.VarIsInitializedOp(resource=handle))

            def begin() -> Any:
                with tf.device(node.devices[1]):
                    write = _raw.AssignVariableOp(
                        resource=handle, value=tf.range(tf.constant(node.size, tf.int64))
                    )
                with control(write):
                    return tf.constant(0)

            with control(tf1.cond(is_new, begin, lambda: tf.constant(0))):
                write = _raw.AssignAddVariableOp(resource=handle, value=tf.fill([node.size], grown))
            with control(write):
                read = _raw.ReadVariableOp(resource=handle, dtype=tf.int64)
        with tf.device(node.devices[2]):
            return changed(read, node.size)

    def _queued(self, node: Node, values: list[Any], name: str) -> Any:
        """Two elements that pass through a queue from one device to another."""
        value = changed(values[0], node.size)
        with tf.device(node.devices[1]):
            queue = self._queue(name, value.dtype)
        put = []
        for number, device in enumerate(node.devices[:2]):
            with control(*put[-1:]), tf.device(device):
                element = changed(value, node.size - number)
            with control(element, *put[-1:]), tf.device(node.devices[1]):
                put.append(_raw.QueueEnqueueV2(handle=queue, components=[element]))
        taken: list[Any] = []
        for _ in put:
            with control(put[-1], *taken[-1:]), tf.device(node.devices[1]):
                taken += _raw.QueueDequeueV2(handle=queue, component_types=[value.dtype])
        with tf.device(node.devices[2]):
            return tf.concat([tf.reshape(each, [-1]) for each in taken], 0)

    def _referred(self, node: Node, values: list[Any], name: str) -> Any:
        """A reference variable of TensorFlow 1."""
        value = changed(values[0], node.size)
        graph = tf1.get_default_graph()
        with graph.container(self._tag), tf.control_dependencies(None), tf.device(node.devices[1]):
            variable = tf1.Variable(
                tf.zeros([0], value.dtype),
                use_resource=False,
                validate_shape=False,
                name=name,
                trainable=False,
            )
        with tf.device(node.devices[1]):
            written = tf1.assign(variable, value, validate_shape=False)
        if value.dtype in (tf.string, tf.bool):
            rows = [written]
        else:
            # Alike, so that they may be bundled; each has a reference as its input.
            with control(written), tf.device(node.devices[1]):
                ids = tf.range(tf.size(value))[:5]
                rows = [
                    tf.gather(tf1.assign_add(variable, tf.zeros_like(value)), ids) for _ in range(4)
                ]
        with tf.device(node.devices[2]):
            return changed(tf.concat([*rows, written], 0), node.size)

    def _handed(self, node: Node, values: list[Any], name: str) -> Any:
        """An element that a step puts somewhere and takes out again, without an order of the two.

        Taking waits for it, and so does the second put into a queue of one place.
        """
        value = changed(values[0], node.size)
        kinds = _CONTAINERS if self._program.mode == "session" else _CONTAINERS[:-2]
        kind = kinds[node.salt % len(kinds)]
        with tf.device(node.devices[1]):
            put, taken = kind(self, node, value, name)
        with control(*put), tf.device(node.devices[2]):
            return changed(tf.reshape(taken, [-1]), node.size)

    def _by_queue(self, node: Node, value: Any, name: str) -> tuple[list[Any], Any]:
        queue = self._queue(name, value.dtype, capacity=1)

        @tf.function(autograph=False)
        def take(handle: Any) -> Any:
            return _raw.QueueDequeueV2(handle=handle, component_types=[value.dtype])[0]

        put: list[Any] = []
        taken: list[Any] = []
        for _ in range(2):
            with control(*put[-1:]):
                put.append(_raw.QueueEnqueueV2(handle=queue, components=[value]))
            with control(*taken[-1:]):
                if node.salt % 2 and self._program.mode == "session":
                    taken.append(take(queue))
                else:
                    found = _raw.QueueDequeueV2(handle=queue, component_types=[value.dtype])
                    taken += found
            if self._program.mode == "function":
                break  # a function runs what is stateful in the order of the program
        return put, taken[-1]

    def _by_stage(self, node: Node, value: Any, name: str) -> tuple[list[Any], Any]:
        place = {"container": self._tag, "shared_name": name}
        put = _raw.Stage(values=[value], **place)
        return [put], _raw.Unstage(dtypes=[value.dtype], **place)[0]

    def _by_map(self, node: Node, value: Any, name: str) -> tuple[list[Any], Any]:
        place = {
            "key": tf.constant(7, tf.int64),
            "indices": [0],
            "dtypes": [value.dtype],
            "container": self._tag,
            "shared_name": name,
        }
        return [_raw.MapStage(values=[value], **place)], _raw.MapUnstage(**place)[0]

    def _by_barrier(self, node: Node, value: Any, name: str) -> tuple[list[Any], Any]:
        barrier = _raw.Barrier(
            component_types=[tf.int64], shapes=[[2]], container=self._tag, shared_name=name
        )
        put = _raw.BarrierInsertMany(
            handle=barrier, keys=["key"], values=digest(value)[tf.newaxis], component_index=0
        )
        taken = _raw.BarrierTakeMany(handle=barrier, num_elements=1, component_types=[tf.int64])
        return [put], taken.values[0]

    def _by_accumulator(self, node: Node, value: Any, name: str) -> tuple[list[Any], Any]:
        accumulator = _raw.ConditionalAccumulator(
            dtype=tf.float32, shape=None, container=self._tag, shared_name=name
        )
        put = _raw.AccumulatorApplyGradient(
            handle=accumulator,
            local_step=tf.constant(2**40, tf.int64),  # it drops what is older than its last take
            gradient=tf.cast(digest(value), tf.float32),
        )
        taken = _raw.AccumulatorTakeGradient(handle=accumulator, num_required=1, dtype=tf.float32)
        return [put], taken

    def _exclusive(self, node: Node, values: list[Any], name: str) -> Any:
        """Two critical sections of one mutex, whose bodies are on other devices."""
        value = changed(values[0], node.size)

        def body(device: str) -> Any:
            with tf.device(device):
                return changed(value, node.size)

        found = []
        for device in node.devices[2:]:
            with tf1.get_default_graph().container(self._tag), tf.device(node.devices[1]):
                section = tf.CriticalSection(shared_name=name)
                found.append(section.execute(lambda device=device: body(device)))
        return tf.concat(found, 0)

    def _arrayed(self, node: Node, values: list[Any], name: str) -> Any:
        """A TensorArray whose elements come from several devices, and so does its flow."""
        value = changed(values[0], node.size)
        with tf.device(node.devices[1]):
            handle, flow = _raw.TensorArrayV3(size=3, dtype=value.dtype, clear_after_read=False)
        for number, device in enumerate(node.devices[1:]):
            with tf.device(device):
                element = changed(value, node.size)
            with tf.device(node.devices[1]):
                flow = _raw.TensorArrayWriteV3(
                    handle=handle, index=number, value=element, flow_in=flow
                )
            with tf.device(device):
                flow = tf.identity(flow)
        with tf.device(node.devices[1]):
            read = [
                _raw.TensorArrayReadV3(handle=handle, index=number, flow_in=flow, dtype=value.dtype)
                for number in range(3)
            ]
        with tf.device(node.devices[2]):
            return tf.concat(read, 0)

    def _trained(self, node: Node, values: list[Any], name: str) -> Any:
        """Rows of a table that are looked up, and updated as by an optimizer of TensorFlow."""
        columns = 1 + node.salt % 9
        kind = _UPDATES[node.salt % len(_UPDATES)]
        # Every third variable has more rows than it was declared with.
        rows = ROWS + 5 * (node.salt % 3 == 0)
        ids = row_ids(node, values, rows)
        with tf.device(node.devices[1]):
            shape = [ROWS, columns]
            table, *slots = (
                _raw.VarHandleOp(
                    dtype=tf.float32,
                    shape=tf.TensorShape(shape),
                    container=self._tag,
                    shared_name=f"{name}-{number}",
                )
                for number in range(TABLE_VARIABLES)
            )
            is_new = tf.logical_not(_raw.VarIsInitializedOp(resource=table))

            def begin() -> Any:
                with tf.device(node.devices[1]):
                    writes = [
                        _raw.AssignVariableOp(
                            resource=each,
                            value=table_rows([rows + self._step // 1000, columns], node.salt),
                        )
                        for each in (*slots, table)
                    ]
                with control(*writes):
                    return tf.constant(0)

            with control(tf1.cond(is_new, begin, lambda: tf.constant(0))):
                found = _raw.ResourceGather(resource=table, indices=ids, dtype=tf.float32)
        gradients = tf.reshape(found, [-1, columns]) * 0.25 + 0.125
        gradients *= tf.cast(self._step, tf.float32)
        flat = tf.reshape(ids, [-1])
        # On the table's device, as TensorFlow's optimizers place them.
        with tf.device(node.devices[1]), tf.control_dependencies([found]):
            if kind == "scatter":
                update = _raw.ResourceScatterAdd(resource=table, indices=flat, updates=gradients)
            else:
                unique, numbers = _raw.Unique(x=flat, out_idx=tf.int32)
                count = _raw.Shape(input=unique)
                sums = _raw.UnsortedSegmentSum(
                    data=gradients,
                    segment_ids=numbers,
                    num_segments=tf.strided_slice(count, [0], [1], shrink_axis_mask=1),
                )
                update = _UPDATE[kind](table, slots, sums, unique)
            with control(update):
                # Not by `table`, whose declared shape would be taken for the shape of the value.
                grown = self._variable(f"{name}-0", tf.float32)
                read = _raw.ReadVariableOp(resource=grown, dtype=tf.float32)
        bits = tf.concat([tf.reshape(each, [-1]) for each in (found, read)], 0)
        with tf.device(node.devices[2]):
            return changed(tf.bitcast(bits, tf.int32), node.size)


_STORED: dict[str, Callable[[Tensors, Node, list[Any], str], Any]] = {
    "variable": Tensors._assigned,
    "counter": Tensors._counted,
    "queue": Tensors._queued,
    "reference": Tensors._referred,
    "table": Tensors._trained,
    "handoff": Tensors._handed,
    "exclusive": Tensors._exclusive,
    "array": Tensors._arrayed,
}
_CONTAINERS: tuple[Callable[[Tensors, Node, Any, str], tuple[list[Any], Any]], ...] = (
    Tensors._by_queue,
    Tensors._by_stage,
    Tensors._by_map,
    # Their handles are references, which functions cannot have.
    Tensors._by_barrier,
    Tensors._by_accumulator,
)


TABLE_VARIABLES = 3
"""A table and its slots."""
ROWS = 12
"""Rows of a table: few, so that ids repeat."""


def row_ids(node: Node, values: list[Any], rows: int = 0) -> Any:
    """Row ids from `values`: two types and shapes, with repeats, sometimes empty."""
    numbers = tf.tile(mixed(values, tf.int32, 40)[: node.salt % 31], [3])
    ids = tf.cast(numbers % (rows or ROWS), tf.int64 if node.salt % 2 else tf.int32)
    return ids if node.salt % 3 else tf.reshape(ids, [1, -1])


def table_rows(shape: list[Any], salt: int) -> Any:
    """Positive numbers, as slots of optimizers are."""
    numbers = tf.range(shape[0] * shape[1], dtype=tf.float32)
    return tf.reshape(numbers, shape) / 64 + 1.0 + salt % 5


def _adagrad(table: Any, slots: list[Any], sums: Any, ids: Any) -> Any:
    return _raw.ResourceSparseApplyAdagrad(
        var=table, accum=slots[0], lr=0.125, grad=sums, indices=ids
    )


def _ftrl(table: Any, slots: list[Any], sums: Any, ids: Any) -> Any:
    return _raw.ResourceSparseApplyFtrl(
        var=table, accum=slots[0], linear=slots[1], grad=sums, indices=ids,
        lr=0.125, l1=0.01, l2=0.01, lr_power=-0.5,
    )  # fmt: skip


def _momentum(table: Any, slots: list[Any], sums: Any, ids: Any) -> Any:
    return _raw.ResourceSparseApplyMomentum(
        var=table, accum=slots[0], lr=0.125, grad=sums, indices=ids, momentum=0.5
    )


_UPDATE: dict[str, Callable[[Any, list[Any], Any, Any], Any]] = {
    "adagrad": _adagrad,
    "ftrl": _ftrl,
    "momentum": _momentum,
}
_UPDATES = (*_UPDATE, "scatter")


@contextlib.contextmanager
def control(*after: Any) -> Iterator[None]:
    """Control edges; none in eager mode, where results of operations are None."""
    with tf.control_dependencies([each for each in after if each is not None]):
        yield


def of_type(numbers: Any, dtype: Any, salt: int) -> Any:
    """Numbers below 251 as another type: exactly, or rounded in the same way everywhere."""
    if dtype != tf.string:
        return tf.cast(numbers, dtype)
    if salt % 4:
        return tf.strings.as_string(numbers)
    # Strings of many lengths, including empty and long ones.
    text = tf.strings.reduce_join(tf.fill([40 if salt % 8 else 2000], f"{salt}~"))
    zeros = tf.zeros_like(numbers)
    return tf.strings.substr(tf.fill(tf.shape(numbers), text), zeros, numbers * (salt % 5))


def changed(value: Any, keep: int) -> Any:
    """A vector of the first `keep` elements that depends on all elements."""
    value = tf.reshape(value, [-1])[: max(keep, 40)]
    if value.dtype == tf.bool:
        return tf.logical_not(value)
    if value.dtype == tf.string:
        return tf.strings.join(["x", value])
    return value + tf.ones_like(value)


def mixed(values: list[Any], dtype: Any, keep: int) -> Any:
    """A value of `dtype` from all `values`: from values of `dtype`, and sizes of the others."""
    same = [tf.reshape(value, [-1]) for value in values if value.dtype == dtype]
    # Not tf.size, which uses a known shape instead of the value. Then a result of a dead tensor
    # would be alive, and the output of a Merge would be random.
    sizes = [tf.reshape(_raw.Size(input=value), [1]) for value in values if value.dtype != dtype]
    return changed(tf.concat(same + [of_type(size, dtype, 1) for size in sizes], axis=0), keep)


def digest(value: Any) -> Any:
    """The size of `value`, and a sum of its elements weighted by position."""
    if value.dtype == tf.string:
        numbers = tf.strings.to_hash_bucket_fast(value, 2**31)
    else:
        real = tf.math.real(value) if value.dtype.is_complex else value
        numbers = tf.cast(real, tf.int64)
    places = tf.range(tf.size(numbers, tf.int64), dtype=tf.int64) % 1009 + 1
    return tf.stack([tf.size(numbers, tf.int64), tf.reduce_sum(numbers * places)])


def _mix(node: Node, values: list[Any], step: Any) -> Any:
    del step
    return mixed(values, tf.as_dtype(node.dtype), node.size)


def _move(node: Node, values: list[Any], step: Any) -> Any:
    del step
    for device in node.devices[: 1 + node.salt % 3]:
        with tf.device(device):
            value = values[0] = changed(values[0], node.size)
    return value


def _fan(node: Node, values: list[Any], step: Any) -> Any:
    del step
    parts = [changed(values[0], 40)[: number % 5] for number in range(FAN)]
    with tf.device(node.devices[1]):
        return tf.concat([changed(part, 40) for part in parts], 0)


def _split(node: Node, values: list[Any], step: Any) -> Any:
    del step
    value = changed(values[0], node.size)
    third = tf.size(value) // 3
    parts = []
    for number, device in enumerate(node.devices[1:]):
        part = value[number * third : (number + 1) * third]
        with tf.device(device):
            parts.append(changed(part, node.size))
    return tf.concat(parts, 0)


def _chosen(node: Node, step: Any) -> Any:
    return tf.equal((step + node.salt) % 2, 0)


def _branch(node: Node, values: list[Any], step: Any) -> Any:
    """A branch with a dead side; Switch, both sides and Merge are on different devices."""
    off, on = _raw.Switch(data=values[0], pred=_chosen(node, step))
    with tf.device(node.devices[1]):
        off = changed(changed(off, node.size), node.size)
    with tf.device(node.devices[2]):
        on = changed(on, node.size)
    with tf.device(node.devices[3]):
        return _raw.Merge(inputs=[off, on])[0]


def _dead(node: Node, values: list[Any], step: Any) -> Any:
    """A dead region with other tensors as inputs, which is merged with a live branch."""
    dtype = tf.as_dtype(node.dtype)
    off, on = _raw.Switch(data=changed(values[0], 40), pred=_chosen(node, step))
    for device in node.devices[1:3]:
        with tf.device(device):
            on = mixed([on, values[-1]], dtype, 40)
    with tf.device(node.devices[3]):
        on = mixed([on, values[0]], dtype, 40)
        off = mixed([off], dtype, 40)
        return _raw.Merge(inputs=[on, off])[0]


def _cond(node: Node, values: list[Any], step: Any) -> Any:
    dtype = tf.as_dtype(node.dtype)

    def side(device: str, times: int) -> Any:
        value = mixed(values, dtype, node.size)
        for _ in range(times):
            with tf.device(device):
                value = changed(value, node.size)
        return value

    return tf1.cond(
        _chosen(node, step),
        lambda: side(node.devices[1], 1),
        lambda: side(node.devices[2], 2),
    )


def _loop(node: Node, values: list[Any], step: Any) -> Any:
    """A loop on two devices that carries a tensor and uses another one.

    In every fourth, one device makes the tensors of all rounds, and another one uses them slowly.
    """
    is_ahead = node.salt % 4 == 0

    def body(i: Any, carried: Any, passed: Any) -> Any:
        with tf.device(node.devices[2]):
            made = tf.fill([3], i) if is_ahead else i
        with tf.device(node.devices[1]):
            if is_ahead:
                slow = tf.sort((tf.range(SLOW) * 7919 + tf.size(carried)) % 65_537)
                made = tf.reduce_max(made) + tf.minimum(slow[0], 0)
            carried = changed(carried[tf.minimum(made, 0) :], node.size)
            return i + 1, carried, tf.identity(passed)

    rounds = (step + node.salt) % 4 * (8 if is_ahead else 1)
    last = tf.reshape(values[-1], [-1])
    _, carried, passed = tf1.while_loop(
        lambda i, *_: i < rounds,
        body,
        [tf.constant(0), tf.reshape(values[0], [-1])[: max(node.size, 40)], last],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None])],
        parallel_iterations=32 if is_ahead else 1 + node.salt % 4,
    )
    return mixed([carried, passed], tf.as_dtype(node.dtype), node.size)


def _list(node: Node, values: list[Any], step: Any) -> Any:
    """A list of tensors: a variant, which TensorFlow serializes."""
    del step
    value = tf.reshape(changed(values[0], 40)[:40], [-1, 1])
    handle = _raw.TensorListFromTensor(tensor=value, element_shape=tf.constant([1]))
    with tf.device(node.devices[1]):
        handle = tf.identity(handle)
    with tf.device(node.devices[2]):
        stacked = _raw.TensorListStack(
            input_handle=handle,
            element_shape=tf.constant([1]),
            element_dtype=value.dtype,
            num_elements=-1,
        )
        return tf.reshape(stacked, [-1])


def _call(node: Node, values: list[Any], step: Any) -> Any:
    """A function whose parts are on several devices."""
    del step
    dtype = tf.as_dtype(node.dtype)

    @tf.function(autograph=False)
    def layer(*given: Any) -> Any:
        with tf.device(node.devices[1]):
            first = mixed(list(given), dtype, node.size)
        with tf.device(node.devices[2]):
            return changed(first, node.size)

    return layer(*values)


def _after(node: Node, values: list[Any], step: Any) -> Any:
    """Control edges across devices."""
    del step
    edge = values[0]
    for device in node.devices[1:]:
        with tf.control_dependencies([edge]), tf.device(device):
            edge = tf.no_op()
    with tf.control_dependencies([edge]):
        return changed(values[-1], node.size)


def _lookup(node: Node, values: list[Any], step: Any) -> Any:
    """Lookups of rows in a constant table on another device, with repeated and sparse ids."""
    del step
    ids = row_ids(node, values)
    with tf.device(node.devices[1]):
        table = tf.constant(
            [[float(row * 8 + column) for column in range(5)] for row in range(ROWS)]
        )
        rows = None if node.salt % 4 == 0 else tf.gather(table, ids)
    if rows is None:
        flat = tf.cast(tf.reshape(ids, [-1]), tf.int64)
        places = tf.range(tf.size(flat, tf.int64), dtype=tf.int64)
        sparse = tf.SparseTensor(
            tf.stack([places // 3, places % 3], 1),
            flat,
            tf.stack([(tf.size(flat, tf.int64) + 2) // 3, tf.constant(3, tf.int64)]),
        )
        rows = tf.nn.embedding_lookup_sparse(
            table, sparse, None, combiner=("sum", "mean", "sqrtn")[node.salt % 3]
        )
    return changed(tf.bitcast(tf.reshape(rows, [-1]), tf.int32), node.size)


_COMPUTED: dict[str, Callable[[Node, list[Any], Any], Any]] = {
    "mix": _mix,
    "move": _move,
    "fan": _fan,
    "split": _split,
    "branch": _branch,
    "dead": _dead,
    "cond": _cond,
    "loop": _loop,
    "list": _list,
    "call": _call,
    "after": _after,
    "lookup": _lookup,
}


def _asserted(fires: Any) -> Any:
    check = tf.debugging.Assert(tf.logical_not(fires), ["this is meant to fail"])
    with control(check):
        return tf.constant(1)


_ERRORS: dict[str, Callable[[Any], Any]] = {
    "gather": lambda fires: tf.gather(tf.range(4), tf.where(fires, 9, 1)),
    "assert": _asserted,
    "reshape": lambda fires: tf.reshape(tf.range(tf.where(fires, 3, 4)), [2, 2]),
    "number": lambda fires: tf.strings.to_number(tf.where(fires, "not one", "1")),
    "file": lambda fires: tf.size(tf.io.read_file(tf.where(fires, "/no/such/file", "/dev/null"))),
    "numerics": lambda fires: tf.debugging.check_numerics(
        1.0 / tf.where(fires, 0.0, 1.0), "it says: not finite \u2713"
    ),
}
