"""Models as jobs: what a step moves follows from what is known of the model.

Of those of `tensorwire bench train` these are the columns. A column's ids are sent once to each ps
that looks it up, and the linear part has one gradient for all of its columns, so TensorFlow sends
it once: both are counted with the first who needs them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tensorwire.bench.models import MODELS
from tensorwire.bench.models.wide_deep import HIDDEN_UNITS
from tensorwire.placement.plan import Variable
from tensorwire.plan.costs import Kernels
from tensorwire.plan.job import NOTHING, JobModel, JobVariable, Transfer

_FLOAT, _ID = 4, 8
_ADAGRAD_SLOTS, _FTRL_SLOTS = 1, 2
_COUNTED_BATCHES = 200


@functools.cache
def unique_ids(model: str, batch_size: int) -> tuple[float, ...]:
    """The different ids that a batch has of each column of a model of MODELS, on average."""
    ids = MODELS[model].load()[0].ids
    batches = ids[: len(ids) // batch_size * batch_size].reshape(-1, batch_size, ids.shape[1])
    some = np.sort(batches[:_COUNTED_BATCHES], axis=1)
    counts = 1 + np.count_nonzero(np.diff(some, axis=1), axis=1)
    return tuple(float(mean) for mean in counts.mean(axis=0))


def job_of(
    model: str,
    batch_size: int,
    worker_cpu_s: float,
    ps_cpu_s: float,
    source: str,
    *,
    is_exact: bool = False,
) -> JobModel:
    """A model of MODELS.

    Args:
        worker_cpu_s: of its own operations at a worker, for a step.
        ps_cpu_s: likewise at all ps together.
        is_exact: with all exact rewrites: each id and its row cross once, and the sum of its
            gradients.
    """
    columns = MODELS[model].columns
    variables: list[JobVariable] = []
    counts = unique_ids(model, batch_size) if is_exact else (float(batch_size),) * len(columns)

    def table(
        name: str, rows: int, width: int, slots: int, count: float, asked: Transfer, pushed: float
    ) -> None:
        size = count * width * _FLOAT
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

    for column, count in zip(columns, counts, strict=True):
        ids = Transfer(1, count * _ID)
        name, width = f"deep/{column.name}", column.embedding_dim
        table(name, column.buckets, width, _ADAGRAD_SLOTS, count, ids, 1.0)
    wide = [each for each in zip(columns, counts, strict=True) if each[0].is_wide]
    # Sums differ by column.
    pushed = 1.0 if is_exact else 1 / len(wide)
    for column, count in wide:
        name = f"wide/{column.name}"
        table(name, column.buckets, 1, _FTRL_SLOTS, count, Transfer(), pushed)
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
