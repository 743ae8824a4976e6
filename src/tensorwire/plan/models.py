"""Models as jobs: what a step moves follows from what is known of the model.

Of those of `tensorwire bench train` these are the columns. A column's ids are sent once to each ps
that looks it up, and the linear part has one gradient for all of its columns, so TensorFlow sends
it once: both are counted with the first who needs them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace

from tensorwire.bench.models import MODELS
from tensorwire.bench.models.wide_deep import HIDDEN_UNITS
from tensorwire.placement.plan import Variable
from tensorwire.plan.costs import Kernels
from tensorwire.plan.job import NOTHING, JobModel, JobVariable, Transfer

_FLOAT, _ID = 4, 8
_ADAGRAD_SLOTS, _FTRL_SLOTS = 1, 2


def job_of(
    model: str, batch_size: int, worker_cpu_s: float, ps_cpu_s: float, source: str
) -> JobModel:
    """A model of MODELS.

    Args:
        worker_cpu_s: of its own operations at a worker, for a step.
        ps_cpu_s: likewise at all ps together.
    """
    columns = MODELS[model].columns
    ids = Transfer(1, batch_size * _ID)
    variables: list[JobVariable] = []

    def table(name: str, rows: int, width: int, slots: int, asked: Transfer, pushed: float) -> None:
        size = batch_size * width * _FLOAT
        variable = Variable(name, (rows, width), _FLOAT, slots * rows * width * _FLOAT)
        variables.append(
            JobVariable(variable, asked, Transfer(1, size), Transfer(pushed, pushed * size))
        )

    def dense(name: str, shape: tuple[int, ...], slots: int) -> None:
        size = _FLOAT * math.prod(shape)
        moved = Transfer(1, size)
        variables.append(
            JobVariable(Variable(name, shape, _FLOAT, slots * size), Transfer(), moved, moved)
        )

    for column in columns:
        table(f"deep/{column.name}", column.buckets, column.embedding_dim, _ADAGRAD_SLOTS, ids, 1.0)
    wide = [column for column in columns if column.is_wide]
    for column in wide:
        table(f"wide/{column.name}", column.buckets, 1, _FTRL_SLOTS, Transfer(), 1 / len(wide))
    dense("wide/bias", (1,), _FTRL_SLOTS)
    width = sum(column.embedding_dim for column in columns)
    for layer, units in enumerate((*HIDDEN_UNITS, 1)):
        dense(f"deep/layer{layer}/kernel", (width, units), _ADAGRAD_SLOTS)
        dense(f"deep/layer{layer}/bias", (units,), _ADAGRAD_SLOTS)
        width = units
    each_s = ps_cpu_s / len(variables)
    return JobModel(
        name=model,
        source=source,
        batch_size=batch_size,
        variables=tuple(replace(each, ps_cpu_s=each_s) for each in variables),
        worker_cpu_s=worker_cpu_s,
    )


def of_variables(
    name: str,
    variables: Sequence[Variable],
    kernels: Kernels,
    *,
    pull: bool = True,
    push: bool = True,
) -> JobModel:
    """A step that reads and updates every variable as a whole, and does nothing else."""
    found, moved_bytes = [], 0.0
    for variable in variables:
        way = Transfer(1, variable.bytes)
        pulled, pushed = way if pull else NOTHING, way if push else NOTHING
        both_bytes = pulled.bytes + pushed.bytes
        moved_bytes += both_bytes
        ps_cpu_s = kernels.ps_s(1, both_bytes)
        found.append(JobVariable(variable, pulled=pulled, pushed=pushed, ps_cpu_s=ps_cpu_s))
    own_s = kernels.worker_s(len(found), moved_bytes)
    return JobModel(name, "made of variables", 1, tuple(found), own_s)


ONE_BIG = "one-big"
_BATCH_SIZE = 256
_FLOAT = 4
_BIG, _SMALL = (12_000, 256), (256,)
_SMALL_VARIABLES = 20


def one_big(kernels: Kernels) -> JobModel:
    """A dense parameter of 12 MB that each step reads and updates as a whole, and small ones.

    It stands for no model in particular: the published test does not name its own.
    """
    shapes = {"big": _BIG, **{f"small{n}": _SMALL for n in range(_SMALL_VARIABLES)}}
    variables = [Variable(name, shape, _FLOAT) for name, shape in shapes.items()]
    return dataclasses.replace(
        of_variables(ONE_BIG, variables, kernels),
        source="one parameter of 12 MB and 20 of 1 KB, invented; own work by the calibration's "
        "kernels",
        batch_size=_BATCH_SIZE,
    )
