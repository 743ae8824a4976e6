"""Placement of variables on ps, for training scripts.

TensorFlow places variables on the ps in turn (round robin), so one large embedding overloads one
ps. For ``tf.compat.v1.train.replica_device_setter``:

    setter = tf.compat.v1.train.replica_device_setter(
        cluster=cluster, ps_strategy=placement.GreedyLoadBalancingStrategy(num_tasks=5))

Such a strategy sees one variable at a time and cannot split a variable that is too large for any
ps. *Balanced* knows all variables in advance:

    plan = placement.balanced(build_model, ps=5)
    with placement.scope(plan, cluster=cluster):
        train_op = build_model()

and for ``tf.distribute.ParameterServerStrategy``:

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    placement.apply(plan, strategy)

Split variables are saved and restored under their own name as if they were whole. So checkpoints of
split and of whole variables are interchangeable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tensorwire.errors import UsageError
from tensorwire.placement import graphs, strategy_v2
from tensorwire.placement import plan as plans
from tensorwire.placement.device import (
    GreedyLoadBalancingStrategy,
    PlannedStrategy,
    RoundRobinStrategy,
    byte_size_load_fn,
)
from tensorwire.placement.plan import Model, Variable
from tensorwire.placement.plan import PlacementPlan as Plan
from tensorwire.placement.splits import splitting
from tensorwire.placement.traffic import Traffic

__all__ = [
    "GreedyLoadBalancingStrategy",
    "Plan",
    "PlannedStrategy",
    "RoundRobinStrategy",
    "Traffic",
    "Variable",
    "apply",
    "balanced",
    "byte_size_load_fn",
    "device_setter",
    "scope",
    "splitting",
    "variables",
]

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

Source: TypeAlias = (
    "Callable[[], object] | str | Path | Sequence[Variable] | tf.Graph | GraphDef | MetaGraphDef"
)


def variables(source: Source) -> list[Variable]:
    """The variables that belong on a ps, in the order in which they are made.

    Args:
        source: a function without arguments that builds the model (it is called in a temporary
            graph); a ``tf.Graph``, GraphDef or MetaGraphDef; the path of a SavedModel, a MetaGraph
            or a graph.pbtxt; or variables, which are returned unchanged.

    Raises:
        UsageError: `source` has another type, or the file contains no graph.
    """
    return list(_model(source).variables)


def _model(source: Source) -> Model:
    if isinstance(source, (str, Path)):
        return graphs.model_of_file(Path(source))
    if isinstance(source, (list, tuple)):
        return Model(tuple(source))
    if hasattr(source, "as_graph_def"):
        return graphs.model_of(source)
    if hasattr(source, "graph_def"):
        return graphs.model_of_graph_def(source.graph_def)
    if hasattr(source, "node"):
        return graphs.model_of_graph_def(source)
    if callable(source):
        return graphs.model_of_function(source)
    raise UsageError(
        f"{source!r} is not a graph, not the path of a graph, and not a function that builds one"
    )


def balanced(
    source: Source,
    ps: int,
    traffic: Traffic | str | Path | Sequence[str | Path] | None = None,
    *,
    exact_rewrites: bool = False,
    keep_whole: Sequence[str] = (),
    tolerance: float = plans.TOLERANCE,
    min_part_bytes: int = plans.MIN_PART_BYTES,
) -> Plan:
    """A plan that splits variables above a fair share and packs the rest, the largest first.

    Every task must make the same plan, from the same function or the same file.

    Args:
        source: see `variables`.
        ps: number of ps.
        traffic: bytes per step of each variable, which are balanced in addition to its size: of an
            earlier run, or files with them (docs/placement.md). By default it is predicted from the
            shapes in the graph, if the source has a graph; ``Traffic({})`` ignores it.
        exact_rewrites: True if the sessions use them; then predicted traffic counts each id of a
            batch and its row once.
        keep_whole: names, or patterns of names (``"tower/*"``), of variables that are not split.
        tolerance: largest load of a ps, as a multiple of the mean, before more is split.
        min_part_bytes: smallest size of a part.

    Raises:
        UsageError: the source or the metrics cannot be read, `ps` is not positive, or a name of
            `keep_whole` matches no variable.
    """
    if ps < 1:
        raise UsageError(f"the number of ps must be at least 1, not {ps}")
    model = _model(source)
    if isinstance(traffic, (str, Path)):
        traffic = [traffic]
    if isinstance(traffic, Sequence):
        traffic = Traffic.read([Path(each) for each in traffic], model.crossings)
    elif traffic is None:
        traffic = Traffic.predicted(model.crossings, exact_rewrites=exact_rewrites)
    variables = plans.whole(model.variables, keep_whole)
    return plans.balanced(
        variables, ps, traffic, tolerance=tolerance, min_part_bytes=min_part_bytes
    )


def device_setter(plan: Plan, **kwargs: Any) -> Callable[[tf.Operation], str]:
    """A ``replica_device_setter`` that follows the plan; also for `device_fn` of a RunConfig.

    `kwargs`, such as `cluster`, are passed to TensorFlow's. Variables that the plan splits must be
    created within `splitting`.
    """
    import tensorflow as tf

    if "cluster" not in kwargs:
        kwargs.setdefault("ps_tasks", plan.ps)
    setter: Callable[[tf.Operation], str] = tf.compat.v1.train.replica_device_setter(
        ps_strategy=PlannedStrategy(plan), **kwargs
    )
    return setter


@contextmanager
def scope(plan: Plan, **kwargs: Any) -> Iterator[None]:
    """`device_setter` and `splitting` together. Build a TF1 model in this scope."""
    import tensorflow as tf

    with tf.compat.v1.device(device_setter(plan, **kwargs)), splitting(plan):
        yield


def apply(plan: Plan, strategy: tf.distribute.Strategy) -> None:
    """Makes a ParameterServerStrategy place the variables that it makes from now on by the plan.

    Raises:
        UsageError: `strategy` has another type, or another number of ps than the plan.
    """
    extended = strategy.extended
    if not hasattr(extended, "_create_variable_round_robin"):
        raise UsageError(
            f"{type(strategy).__name__}: a plan is for tf.distribute.ParameterServerStrategy; "
            "for tf.compat.v1 use placement.scope"
        )
    if extended._num_ps != plan.ps:
        raise UsageError(f"the plan is for {plan.ps} ps, but the strategy has {extended._num_ps}")
    strategy_v2.attach(extended, plan)
