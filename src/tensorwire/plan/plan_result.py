"""All that one call of `tensorwire plan` found, and on what it rests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire import __version__
from tensorwire.plan.prediction import Prediction, PredictionRequest
from tensorwire.plan.search import Change, Curve, Offer


@dataclass(frozen=True)
class Basis:
    """Whose costs the predictions take."""

    text: str
    """"this user's own calibration"."""
    question: PredictionRequest

    @property
    def machine(self) -> str:
        calibration = self.question.calibration
        host = calibration.host
        return (
            f"{host.cpu}, {host.cores} cores, TensorFlow {calibration.tensorflow}, "
            f"{calibration.time.replace('T', ' ').replace('Z', ' UTC')}"
        )

    def extrapolation(self, workers: int, ps: int) -> list[str]:
        """Warnings about predictions that go beyond what was measured."""
        calibration = self.question.calibration
        beyond = [
            f"{asked} {what} asked, at most {measured} calibrated at once"
            for asked, measured, what in (
                (workers, calibration.measured_workers, "workers"),
                (ps, calibration.measured_ps, "ps"),
            )
            if asked > measured
        ]
        shape = self.question.shape
        if shape.cores != calibration.host.cores:
            beyond.append(
                f"machines of {shape.cores:g} cores asked, {calibration.host.cores} calibrated"
            )
        return beyond


@dataclass(frozen=True)
class PlanResult:
    """Result of one call. Lists that were not asked for are empty."""

    basis: Basis
    case: str | None = None
    predictions: Sequence[tuple[PredictionRequest, Prediction]] = ()
    changes: Sequence[Change] = ()
    """Changes to the cluster of the first prediction, those that do not help among them."""
    curves: Sequence[tuple[PredictionRequest, Curve]] = ()
    offers: Sequence[Offer] = ()
    target_steps_per_s: float | None = None

    @property
    def most(self) -> tuple[int, int]:
        """The most workers, and the most ps, of all predictions."""
        seen = [
            *(prediction for _, prediction in self.predictions),
            *(prediction for _, curve in self.curves for _, prediction in curve.points),
            *(offer.prediction for offer in self.offers),
        ]
        return max(each.workers for each in seen), max(each.ps for each in seen)

    def document(self) -> dict[str, Any]:
        """The result as JSON."""
        question = self.basis.question
        return {
            "command": "plan",
            "version": __version__,
            "calibration": {
                "source": self.basis.text,
                "host": dataclasses.asdict(question.calibration.host),
                "tensorflow": question.calibration.tensorflow,
                "time": question.calibration.time,
            },
            "extrapolation": self.basis.extrapolation(*self.most),
            "job": {"name": question.job.name, "source": question.job.source},
            "seed": question.seed,
            "case": self.case,
            "predictions": [
                {**dataclasses.asdict(prediction), "cluster": dataclasses.asdict(asked.shape)}
                for asked, prediction in self.predictions
            ],
            "changes": [dataclasses.asdict(each) for each in self.changes if each.helps],
            "curves": [
                {
                    "side": asked.side,
                    "placement": asked.placement,
                    "layout": asked.shape.layout,
                    "over": curve.what,
                    "bend": curve.bend,
                    "points": [
                        {curve.what: number, **dataclasses.asdict(prediction)}
                        for number, prediction in curve.points
                    ],
                }
                for asked, curve in self.curves
            ],
            "offers": [
                {
                    "cores": offer.cores,
                    "cluster": dataclasses.asdict(offer.question.shape),
                    **dataclasses.asdict(offer.prediction),
                }
                for offer in self.offers
            ],
        }
