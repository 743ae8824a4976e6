"""The job of the published finding: one large parameter beside small ones."""

from __future__ import annotations

from tensorwire.placement.plan import Variable
from tensorwire.plan.costs import Kernels
from tensorwire.plan.job import Job, JobVariable, Transfer

ONE_BIG = "one-big"
_BATCH_SIZE = 256
_FLOAT = 4
_BIG, _SMALL = (12_000, 256), (256,)
_SMALL_VARIABLES = 20


def one_big(kernels: Kernels) -> Job:
    """A dense parameter of 12 MB that each step reads and updates as a whole, and small ones.

    It stands for no model in particular: the published test does not name its own.
    """
    shapes = {"big": _BIG, **{f"small{n}": _SMALL for n in range(_SMALL_VARIABLES)}}
    variables, worker_cpu_s = [], 0.0
    for name, shape in shapes.items():
        variable = Variable(name, shape, _FLOAT)
        way = Transfer(1, variable.bytes)
        both_bytes = 2 * way.bytes
        worker_cpu_s += kernels.variable_worker_cpu_s + both_bytes * kernels.byte_worker_cpu_s
        ps_cpu_s = kernels.variable_ps_cpu_s + both_bytes * kernels.byte_ps_cpu_s
        variables.append(JobVariable(variable, pulled=way, pushed=way, ps_cpu_s=ps_cpu_s))
    return Job(
        ONE_BIG,
        "one parameter of 12 MB and 20 of 1 KB, invented; own work by the calibration's kernels",
        _BATCH_SIZE,
        tuple(variables),
        worker_cpu_s,
    )
