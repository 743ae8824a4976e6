"""The work of a worker's step, whatever carries it: tensors, computation, input, and who waits.

All figures are of one worker's step: a job of 50 workers has 50 such steps under way. Times are
seconds, sizes bytes, CPU seconds of one core.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tensorwire.placement.plan import Variable

ASYNC, SYNC = "async", "sync"


@dataclass(frozen=True)
class Transfer:
    """Tensors that go one way."""

    tensors: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Transfer) -> Transfer:
        return Transfer(self.tensors + other.tensors, self.bytes + other.bytes)

    def times(self, factor: float) -> Transfer:
        """This transfer multiplied by a number or share."""
        return Transfer(self.tensors * factor, self.bytes * factor)


NOTHING = Transfer()


@dataclass(frozen=True)
class JobVariable:
    """A variable, and what a worker's step moves and does for it.

    In parts, each part has as many tensors as the whole (each is asked, pulled and pushed by
    itself) and the bytes and the CPU of its rows.
    """

    variable: Variable
    asked: Transfer = NOTHING
    """Worker to ps before the ps can answer: ids to look up."""
    pulled: Transfer = NOTHING
    """Ps to worker: rows that were looked up, or the whole of a dense variable."""
    pushed: Transfer = NOTHING
    """Worker to ps: gradients (of a sparse one: values and indices)."""
    ps_cpu_s: float = 0.0
    """CPU time of the ps's own operations: look-ups, updates, their executor. Not what the
    transport takes."""


@dataclass(frozen=True)
class JobModel:
    """A model in training. What differs between clusters (workers, ps, links) is not in it."""

    name: str
    source: str
    """The source of the figures, for people: "ctr, 1 worker and 1 ps, measured"."""
    batch_size: int
    variables: tuple[JobVariable, ...]
    worker_cpu_s: float
    """CPU time of a worker's own operations, without the transport and `Costs.step_cpu_s`."""
    worker_parallelism: float = 1.0
    """Cores that these keep busy where a worker has as many."""
    ps_parallelism: float = 1.0
    """Cores of one ps that one worker's look-ups and updates keep busy, at most."""
    overlap: float = 0.0
    """Share, 0 to 1, of the worker's own operations that run while tensors come and go; the rest
    run when all have come and before any goes."""
    input_examples_per_s: float | None = None
    """The rate limit of one worker's input; None: no limit. Input is read ahead of the steps."""
    training: str = ASYNC
    """ASYNC: each worker on its own. SYNC: as SyncReplicasOptimizer, a step of all together."""
    straggler_sigma: float = 0.0
    """Spread of a worker's own time from step to step: the logarithm's standard deviation."""
    exact: JobModel | None = None
    """The same job with all exact rewrites: fewer ids, rows and operations; None: not known."""

    def having(self, **fields: Any) -> JobModel:
        """The same with other fields, with and without rewrites."""
        exact = None if self.exact is None else self.exact.having(**fields)
        return dataclasses.replace(self, **fields, exact=exact)
