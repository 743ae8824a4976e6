"""What is asked: a job, the costs of a machine, a shape of cluster; answers are predictions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from tensorwire.errors import UsageError
from tensorwire.placement.plan import STRATEGIES, PlacementPlan
from tensorwire.plan.costs import Calibration, Costs
from tensorwire.plan.job import JobModel
from tensorwire.plan.loads import traffic_of
from tensorwire.plan.predict import bound, predict, steps_of
from tensorwire.plan.prediction import Prediction
from tensorwire.plan.shape import Shape

BY_TRAFFIC = "balanced+traffic"
PLACEMENTS = (*STRATEGIES, BY_TRAFFIC)
"""Those of `tensorwire place`, and balanced by what the job moves."""


@dataclass(frozen=True)
class PredictionRequest:
    """One prediction that is wanted."""

    job: JobModel
    calibration: Calibration
    side: str
    placement: str
    shape: Shape
    seed: int = 0
    steps: int | None = None
    """Of each worker; None: enough."""

    @property
    def worker_steps(self) -> int:
        """How many steps a simulation takes, at most about: for progress."""
        return (self.steps or steps_of(self.shape.workers)) * self.shape.workers

    def answer(self, on_step: Callable[[], None] = lambda: None) -> Prediction:
        """Simulates it.

        Raises:
            UsageError: the calibration lacks the side, or the job cannot be on that cluster.
        """
        return predict(
            self.job,
            self.shape.cluster(),
            self.side,
            self._costs(),
            placed(self.job, self.placement, self.shape.ps),
            steps=self.steps,
            seed=self.seed,
            on_step=on_step,
        )

    def bound(self) -> float:
        """Steps a second that the answer does not exceed, found at once.

        Raises:
            UsageError: as `answer`.
        """
        plan = placed(self.job, self.placement, self.shape.ps)
        return bound(self.job, self.shape.cluster(), self._costs(), plan)

    def _costs(self) -> Costs:
        costs = self.calibration.costs.get(self.side)
        if costs is None:
            known = ", ".join(self.calibration.costs)
            raise UsageError(f"the calibration has no costs of {self.side}: it has {known}")
        return costs

    def having(self, **fields: object) -> PredictionRequest:
        """The same with another job, side, placement or shape, or fields of the shape."""
        own = {name: value for name, value in fields.items() if name in self.__dataclass_fields__}
        shape = {name: value for name, value in fields.items() if name not in own}
        changed: PredictionRequest = replace(self, **own)  # type: ignore[arg-type]
        return replace(changed, shape=replace(changed.shape, **shape)) if shape else changed  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def placed(job: JobModel, placement: str, ps: int) -> PlacementPlan:
    """The job's variables on so many ps."""
    variables = [each.variable for each in job.variables]
    if placement == BY_TRAFFIC:
        return replace(STRATEGIES["balanced"](variables, ps, traffic_of(job)), strategy=BY_TRAFFIC)
    return STRATEGIES[placement](variables, ps, None)
