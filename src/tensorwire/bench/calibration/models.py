"""The small Wide & Deep models of `tensorwire bench train` as jobs: columns give what a step moves.

A column's ids are sent once to each ps that looks it up, and the linear part has one gradient for
all of its columns, so TensorFlow sends it once: both are counted with the first who needs them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np

from tensorwire.bench.models import MODELS
from tensorwire.bench.models.networks import HIDDEN_UNITS
from tensorwire.placement.plan import Variable
from tensorwire.plan.job import NOTHING, JobModel, JobVariable, Transfer

_FLOAT, _ID = 4, 8
_ADAGRAD_SLOTS, _FTRL_SLOTS = 1, 2
_COUNTED_BATCHES = 200


@functools.cache
def unique_ids(model: str, batch_size: int) -> tuple[float, ...]:
    """The different ids that a batch has of each column of a model of MODELS, on average."""
    ids = MODELS[model].load()[0].inputs
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
    """A small Wide & Deep model of MODELS.

    Args:
        worker_cpu_s: of its own operations at a worker, for a step.
        ps_cpu_s: likewise at all ps together.
        is_exact: with all exact rewrites: each id and its row cross once, and the sum of its
            gradients.
    """
    columns = MODELS[model].columns
    variables: list[JobVariable] = []
    counts = unique_ids(model, batch_size) if is_exact else (float(batch_size),) * len(columns)

    def add(
        name: str,
        shape: tuple[int, ...],
        slots: int,
        asked: Transfer = NOTHING,
        rows: float | None = None,
        pushed: float = 1.0,
    ) -> None:
        """A variable, of which a step moves so many rows (None: all of it)."""
        whole = math.prod(shape) * _FLOAT
        size = whole if rows is None else rows * shape[1] * _FLOAT
        variable = Variable(name, shape, _FLOAT, slots * whole)
        variables.append(
            JobVariable(variable, asked, Transfer(1, size), Transfer(pushed, pushed * size))
        )

    for column, count in zip(columns, counts, strict=True):
        shape = (column.buckets, column.embedding_dim)
        add(f"deep/{column.name}", shape, _ADAGRAD_SLOTS, Transfer(1, count * _ID), count)
    wide = [each for each in zip(columns, counts, strict=True) if each[0].is_wide]
    # Sums differ by column.
    pushed = 1.0 if is_exact else 1 / len(wide)
    for column, count in wide:
        add(f"wide/{column.name}", (column.buckets, 1), _FTRL_SLOTS, NOTHING, count, pushed)
    add("wide/bias", (1,), _FTRL_SLOTS)
    width = sum(column.embedding_dim for column in columns)
    for layer, units in enumerate((*HIDDEN_UNITS, 1)):
        add(f"deep/layer{layer}/kernel", (width, units), _ADAGRAD_SLOTS)
        add(f"deep/layer{layer}/bias", (units,), _ADAGRAD_SLOTS)
        width = units
    each_s = ps_cpu_s / len(variables)
    return JobModel(
        name=model,
        source=source,
        batch_size=batch_size,
        variables=tuple(replace(each, ps_cpu_s=each_s) for each in variables),
        worker_cpu_s=worker_cpu_s,
    )
