"""Statistics of repeated measurements on a shared machine.

A measurement is a list of rounds, and a round is a list of step times in seconds. Sides take turns
in each round, so a slow minute of the machine affects all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensorwire.bench.frame.record import LatencyUs, Ratio, StepMs

Rounds = Sequence[Sequence[float]]

CONFIDENCE = 0.95
_RESAMPLES = 5000


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


def latency_us(rounds: Sequence[npt.ArrayLike]) -> LatencyUs:
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


def speedup(first: Rounds, second: Rounds) -> Ratio:
    """The speed of `first` divided by the speed of `second`, with its interval.

    Both measurements have the same number of rounds, measured in turns.

    Raises:
        ValueError: the numbers of rounds differ, or are zero.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} rounds cannot be compared with {len(second)}")
    return Ratio(typical_s(second) / typical_s(first), _speedup_interval(first, second))


def _speedup_interval(first: Rounds, second: Rounds) -> tuple[float, float] | None:
    """A percentile bootstrap over whole rounds, because a disturbance affects a round's both sides.

    BCa is not used, because it is undefined for medians of so few values. Deterministic.
    """
    if len(first) < 2:
        return None
    first_medians, second_medians = (
        np.array([np.median(times) for times in rounds]) for rounds in (first, second)
    )
    drawn = np.random.default_rng(0).integers(0, len(first), (_RESAMPLES, len(first)))
    speedups = np.median(second_medians[drawn], axis=1) / np.median(first_medians[drawn], axis=1)
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(speedups, [outside, 1 - outside])
    return float(low), float(high)


def scatter(rounds: Rounds) -> float:
    """The variation of one side's rounds: interquartile range of their medians, over the median."""
    low, middle, high = np.percentile([np.median(times) for times in rounds], [25, 50, 75])
    return float((high - low) / middle)


def split(iters: int, rounds: int) -> list[int]:
    """Splits `iters` steps over rounds as evenly as possible, with at least one step per round."""
    rounds = max(1, min(rounds, iters))
    return [iters // rounds + (index < iters % rounds) for index in range(rounds)]
