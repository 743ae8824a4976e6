"""Statistics of repeated measurements on a shared machine.

A measurement is a list of rounds, and a round is a list of step times in seconds. Variants take
turns in each round, so a slow minute of the machine affects all of them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import psutil

from tensorwire.bench.frame.columns import PERCENTILES, Percentiles, StepMs
from tensorwire.bench.frame.record import Noise, Ratio
from tensorwire.bench.frame.variants import PAIRS

Rounds = Sequence[Sequence[float]]
SomePercentiles = TypeVar("SomePercentiles", bound=Percentiles)

CONFIDENCE = 0.95
_RESAMPLES = 5000


def percentiles(
    kind: type[SomePercentiles], rounds: Sequence[npt.ArrayLike], factor: float = 1.0
) -> SomePercentiles:
    """The percentiles that are the fields of `kind`, over the times of all rounds, `factor` times.

    Raises:
        ValueError: there is no time.
    """
    times = np.concatenate([np.asarray(each, dtype=np.float64) for each in rounds]) * factor
    if not times.size:
        raise ValueError("nothing was measured")
    names = [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: float(np.percentile(times, PERCENTILES[name])) for name in names})


def step_ms(rounds: Rounds) -> StepMs:
    """Percentiles of all steps of all rounds, whose times are in seconds."""
    return percentiles(StepMs, rounds, 1e3)


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
    """A percentile bootstrap over whole rounds, as a disturbance affects all in a round.

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
    """The variation of one variant: interquartile range of its rounds' medians, over the median."""
    low, middle, high = np.percentile([np.median(times) for times in rounds], [25, 50, 75])
    return float((high - low) / middle)


def split(iters: int, rounds: int) -> list[int]:
    """Splits `iters` steps over rounds as evenly as possible, with at least one step per round."""
    rounds = max(1, min(rounds, iters))
    return [iters // rounds + (index < iters % rounds) for index in range(rounds)]


def compare_cases(
    rounds: Mapping[str, Mapping[str, Rounds]], pairs: Sequence[tuple[str, str]] = PAIRS
) -> dict[str, Ratio]:
    """The ratio "a/b" of each pair of `pairs` in each case; "a/b tiny" if there are several."""
    return {
        f"{first}/{second}{_suffix(case, rounds)}": speedup(of_case[first], of_case[second])
        for case, of_case in rounds.items()
        for first, second in pairs
        if first in of_case and second in of_case
    }


def by_variant_and_case(rounds: Mapping[str, Mapping[str, Rounds]]) -> dict[str, Rounds]:
    """The rounds by name: "grpc", or "grpc tiny" if there are several cases."""
    return {
        f"{name}{_suffix(case, rounds)}": of_variant
        for case, of_case in rounds.items()
        for name, of_variant in of_case.items()
    }


def _suffix(case: str, rounds: Mapping[str, object]) -> str:
    return f" {case}" if len(rounds) > 1 else ""


class NoiseWatch:
    """The load on the machine by other programs, from its creation until `seen` is called."""

    def __init__(self) -> None:
        self._load, _, _ = os.getloadavg()
        self._times = psutil.cpu_times()

    def seen(self, rounds: Mapping[str, Rounds]) -> Noise:
        """The noise so far. `rounds`: the rounds of each variant."""
        load, _, _ = os.getloadavg()
        now = psutil.cpu_times()
        # Guest time is also contained in user time.
        fields = [name for name in now._fields if not name.startswith("guest")]
        total_s = sum(getattr(now, name) - getattr(self._times, name) for name in fields)
        stolen_s = now.steal - self._times.steal
        return Noise(
            load_start=self._load,
            load_end=load,
            steal=stolen_s / total_s if total_s > 0 else 0.0,
            scatter={name: scatter(each) for name, each in rounds.items() if len(each) > 1},
        )
