"""What the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tensorwire.doctor.evidence import Evidence

Confidence = Literal["high", "medium", "low"]

SMALLEST_COST = 0.05
"""Of a step: what costs less is not worth a change."""


@dataclass(frozen=True)
class Finding:
    """One reason why the job does not scale."""

    rule: str
    title: str
    cost: float | None
    """Share of a step's time that the change may save; None where no step was looked at."""
    evidence: tuple[str, ...]
    """Sentences with their figures."""
    confidence: Confidence
    change: str
    """The one thing to do next."""
    is_risk: bool = False
    """It costs nothing until something else goes wrong."""


@dataclass(frozen=True)
class Diagnosis:
    """The findings, the costliest first, and what they rest on."""

    findings: tuple[Finding, ...]
    looked_at: tuple[str, ...]
    not_looked_at: tuple[str, ...]
    evidence: Evidence
