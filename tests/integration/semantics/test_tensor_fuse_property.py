"""Random graphs over three tasks give the same with fusion as without, and end."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .fusing import total, with_and_without
from .support import TensorFlowCluster, tf1

pytestmark = pytest.mark.timeout(240, method="thread", func_only=True)

TASKS = ("/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1")
DTYPES = (tf.float32, tf.float16, tf.int32, tf.bool, tf.string)
SHAPES = ((), (0,), (3,), (2, 2), (400,), (40_000,))
_LONGEST = 40

_numbers = itertools.count()


@dataclass(frozen=True)
class Step:
    """One tensor of a random graph. `inputs` and `after` are indices of earlier ones."""

    kind: str
    tasks: tuple[str, ...]
    dtype: tf.DType
    shape: tuple[int, ...]
    inputs: tuple[int, ...]
    after: tuple[int, ...] = field(default=())


@dataclass(frozen=True)
class Case:
    """A random graph, and the indices of the tensors that are fetched."""

    plan: list[Step]
    wanted: list[int]


def random_case(seed: int) -> Case:
    """Drawn evenly, and not by hypothesis, which likes small and equal things."""
    draw = random.Random(seed)
    kinds = ["source", "mix", "mix", "mix", "branch", "loop", "variable"]
    tasks = draw.sample(TASKS, k=draw.choice([2, 2, 3]))
    plan: list[Step] = []
    for index in range(draw.randint(10, 50)):
        earlier = range(max(0, index - 15), index)
        plan.append(
            Step(
                kind="source" if index < 6 else draw.choice(kinds),
                tasks=tuple(draw.choices(tasks, k=4)),
                dtype=draw.choice(DTYPES),
                shape=draw.choice(SHAPES),
                inputs=tuple(draw.choices(earlier, k=draw.randint(1, 5))) if index else (),
                after=(draw.choice(earlier),) if index and draw.random() < 0.2 else (),
            )
        )
    wanted = draw.sample(range(len(plan)), k=draw.randint(3, 10))
    return Case(plan, wanted)


def source(step: Step) -> Any:
    """A tensor of the wanted kind that no optimizer knows."""
    count = tf1.placeholder_with_default(np.prod(step.shape, dtype=np.int32), [])
    return tf.reshape(of_type(tf.range(count) % 7, step.dtype), step.shape)


def of_type(numbers: Any, dtype: tf.DType) -> Any:
    return tf.strings.as_string(numbers) if dtype == tf.string else tf.cast(numbers, dtype)


def changed(value: Any) -> Any:
    """A vector that depends on all that matters of `value`."""
    value = tf.reshape(value, [-1])[:_LONGEST]
    if value.dtype == tf.bool:
        return tf.logical_not(value)
    if value.dtype == tf.string:
        return tf.strings.join(["x", value])
    return value + tf.ones_like(value)


def mixed(values: list[Any], dtype: tf.DType) -> Any:
    """Of tensors of any types one of `dtype`: those of that type, and the sizes of the others."""
    same = [tf.reshape(value, [-1]) for value in values if value.dtype == dtype]
    sizes = [tf.reshape(tf.size(value), [1]) for value in values if value.dtype != dtype]
    return changed(tf.concat(same + [of_type(size, dtype) for size in sizes], axis=0))


def branch(step: Step, values: list[Any]) -> Any:
    """One side is dead: Switch, the two sides and Merge each on a task of their own."""
    with tf.device(step.tasks[0]):
        off, on = tf.raw_ops.Switch(data=values[0], pred=tf.size(values[-1]) % 2 == 0)
    with tf.device(step.tasks[1]):
        off = changed(changed(off))
    with tf.device(step.tasks[2]):
        on = changed(on)
    with tf.device(step.tasks[3]):
        return tf.raw_ops.Merge(inputs=[off, on])[0]


def loop(step: Step, values: list[Any]) -> Any:
    """A loop that carries a tensor, uses another, and may be on two tasks."""

    def body(i: Any, carried: Any, passed: Any) -> Any:
        with tf.device(step.tasks[1]):
            return i + 1, changed(carried), tf.identity(passed)

    with tf.device(step.tasks[0]):
        carried = tf.reshape(values[0], [-1])
        _, carried, passed = tf1.while_loop(
            lambda i, *_: i < tf.size(values[-1]) % 4 + 2,
            body,
            [0, carried, values[-1]],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None]), values[-1].shape],
            parallel_iterations=2,
        )
        return mixed([carried, passed], step.dtype)


def variable(step: Step, values: list[Any]) -> Any:
    """Written from one task, read by another."""
    with tf.device(step.tasks[0]):
        handle = tf.raw_ops.VarHandleOp(
            dtype=values[0].dtype, shape=tf.TensorShape(None), shared_name=f"fuse_{next(_numbers)}"
        )
        write = tf.raw_ops.AssignVariableOp(resource=handle, value=values[0])
    with tf.control_dependencies([write]), tf.device(step.tasks[0]):
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=values[0].dtype)
    with tf.device(step.tasks[1]):
        return changed(read)


def build(plan: list[Step]) -> list[Any]:
    tensors: list[Any] = []
    for step in plan:
        values = [tensors[index] for index in step.inputs]
        after = [tensors[index] for index in step.after]
        with tf.control_dependencies(after), tf.device(step.tasks[0]):
            match step.kind:
                case "source":
                    tensors.append(source(step))
                case "mix":
                    tensors.append(mixed(values, step.dtype))
                case "branch":
                    tensors.append(branch(step, values))
                case "loop":
                    tensors.append(loop(step, values))
                case "variable":
                    tensors.append(variable(step, values))
    return tensors


def same(a: Any, b: Any) -> bool:
    (kind, found), (other_kind, expected) = a, b
    if kind != other_kind or kind != "value":
        return False
    return all(
        np.asarray(x).dtype == np.asarray(y).dtype and np.array_equal(x, y)
        for x, y in zip(found, expected, strict=True)
    )


@pytest.fixture(autouse=True)
def _switch_and_merge() -> Any:
    was_v2 = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    yield
    if was_v2:
        tf1.enable_control_flow_v2()


def test_random_graphs_give_the_same_and_end(fusing_cluster: TensorFlowCluster) -> None:
    def check(seed: int) -> None:
        case = random_case(seed)
        with tf.Graph().as_default() as graph:
            tensors = build(case.plan)
            fetches = [tensors[index] for index in case.wanted]
            fused, single = with_and_without(fusing_cluster, graph, fetches, steps=3)
        assert all(same(a, b) for a, b in zip(fused, single, strict=True)), (case, fused, single)

    before = total(fusing_cluster, "fused_tensors")
    settings(
        max_examples=20,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take minutes
        suppress_health_check=list(HealthCheck),
    )(given(st.integers(0, 2**32 - 1))(check))()
    assert total(fusing_cluster, "fused_tensors") - before > 150
