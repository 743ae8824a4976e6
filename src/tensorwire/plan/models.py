"""Jobs made of variables alone: what a step moves follows from their shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tensorwire.placement.plan import Variable
from tensorwire.plan.costs import Kernels
from tensorwire.plan.job import NOTHING, JobModel, JobVariable, Transfer


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
