"""Figures from repeated measurements on a machine that others use too.

A measurement is a list of rounds, and a round the times of its steps in seconds. What is compared
runs in turns, round by round, so that a slow minute of the machine hits all sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorwire.bench.record import LatencyUs, StepMs

Rounds = Sequence[Sequence[float]]

WIDE_SPREAD = 0.25
"""A spread from which on a figure deserves a warning."""


def step_ms(rounds: Rounds) -> StepMs:
    """Percentiles over all steps of all rounds, in milliseconds.

    Raises:
        ValueError: there is no step.
    """
    steps = np.concatenate([np.asarray(times, dtype=np.float64) for times in rounds]) * 1e3
    if not steps.size:
        raise ValueError("no step was measured")
    p50, p90 = np.percentile(steps, [50, 90])
    return StepMs(p50=float(p50), p90=float(p90), min=float(steps.min()))


def latency_us(rounds: Sequence[Sequence[int]]) -> LatencyUs:
    """Percentiles over all requests of all rounds, in microseconds.

    Raises:
        ValueError: there is no request.
    """
    times = np.concatenate([np.asarray(times) for times in rounds])
    if not times.size:
        raise ValueError("no request was measured")
    p50, p99 = np.percentile(times, [50, 99])
    return LatencyUs(p50=float(p50), p99=float(p99))


def typical_s(rounds: Rounds) -> float:
    """Seconds of a step: the median over the rounds of each round's median."""
    return float(np.median([np.median(times) for times in rounds]))


@dataclass(frozen=True)
class Ratio:
    """How many times faster one side is than the other."""

    value: float
    """Ratio of the medians over the rounds; above 1: the first is faster."""
    low: float
    """First quartile of the ratios of single rounds."""
    high: float
    """Third quartile of the ratios of single rounds."""

    @property
    def is_wide(self) -> bool:
        """Whether the rounds disagree so much that the value should not be trusted."""
        return (self.high - self.low) > WIDE_SPREAD * self.value


def speedup(first: Rounds, second: Rounds) -> Ratio:
    """How many times as fast as a step of `second` a step of `first` is.

    The two measurements have as many rounds each, taken in turns.

    Raises:
        ValueError: they have not.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} rounds cannot be compared with {len(second)}")
    pairs = [float(np.median(b) / np.median(a)) for a, b in zip(first, second, strict=True)]
    low, high = np.percentile(pairs, [25, 75])
    return Ratio(typical_s(second) / typical_s(first), float(low), float(high))


def split(iters: int, rounds: int) -> list[int]:
    """How many of `iters` steps each round gets: as even as can be, no round without one."""
    rounds = max(1, min(rounds, iters))
    return [iters // rounds + (index < iters % rounds) for index in range(rounds)]
