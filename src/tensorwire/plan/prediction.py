"""What a prediction says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Utilization:
    """How busy something is that has a limit."""

    name: str
    """"ps:0 cores", "ps:0 link out", "workers link in", "the machine's cores", "input"."""
    share: float
    """0 to 1."""


@dataclass(frozen=True)
class PredictedLoad:
    """A task, or several that are alike."""

    task: str
    """"ps:0", or the first of those that are alike."""
    count: int
    cores: float
    """Busy, on average."""
    out_bytes_per_s: float
    in_bytes_per_s: float


@dataclass(frozen=True)
class StepParts:
    """Where the time of a worker's step goes, in seconds; a mean over workers and steps."""

    input_s: float
    """Waiting for input."""
    pull_s: float
    """From the start of the step until all variables are there."""
    compute_s: float
    push_s: float
    """Until every ps has applied the gradients."""
    others_s: float
    """Synchronous training: waiting for the other workers."""

    @property
    def step_s(self) -> float:
        return self.input_s + self.pull_s + self.compute_s + self.push_s + self.others_s


@dataclass(frozen=True)
class Prediction:
    """One side of one cluster."""

    side: str
    """As `costs.SIDES` has it."""
    placement: str
    layout: str
    workers: int
    ps: int
    steps_per_s: float
    """Asynchronous: steps of all workers together. Synchronous: steps of all as one."""
    examples_per_s: float
    step: StepParts
    tasks: Sequence[PredictedLoad]
    uses: Sequence[Utilization]
    """The busiest first."""
    bound_steps_per_s: float
    """What no such cluster can exceed: the busiest thing busy all the time."""

    def to_document(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)
