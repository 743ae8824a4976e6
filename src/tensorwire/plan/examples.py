"""The job of the published finding: one large parameter beside small ones."""

from __future__ import annotations

import dataclasses

from tensorwire.placement.plan import Variable
from tensorwire.plan.costs import Kernels
from tensorwire.plan.job import JobModel
from tensorwire.plan.models import of_variables

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
