"""Packs loads into bins. A load is a tuple with one number per quantity to balance.

The packing functions return the bin of each load, in the order of the loads, deterministically.
`fixed` has the bins of loads that stay where they are, by their index.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

Load: TypeAlias = tuple[float, ...]
Fixed: TypeAlias = Mapping[int, int]
_NONE: Fixed = MappingProxyType({})


def round_robin(count: int, bins: int, fixed: Fixed = _NONE) -> list[int]:
    """Puts the loads into the bins in turn, regardless of their size."""
    turns = itertools.cycle(range(bins))
    return [fixed[index] if index in fixed else next(turns) for index in range(count)]


def greedy(loads: Sequence[Load], bins: int, fixed: Fixed = _NONE) -> list[int]:
    """Puts each load, in the given order, into the bin that is least full afterwards."""
    return _pack(loads, range(len(loads)), bins, fixed)


def longest_first(loads: Sequence[Load], bins: int, fixed: Fixed = _NONE) -> list[int]:
    """`greedy`, the largest loads first (longest processing time).

    For loads of one number, the fullest bin holds at most 4/3 - 1/(3 bins) times as much as in the
    optimal packing (R. L. Graham, Bounds on Multiprocessing Timing Anomalies, 1969).
    """
    shares = _shares(loads)
    order = sorted(range(len(loads)), key=lambda i: (-max(shares[i]), i))
    return _pack(loads, order, bins, fixed)


def fill(loads: Sequence[Load], places: Sequence[int], bins: int) -> list[Load]:
    """The load of each bin if load i is in bin `places[i]`."""
    width = len(loads[0]) if loads else 1
    held = [[0.0] * width for _ in range(bins)]
    for load, place in zip(loads, places, strict=True):
        for d, value in enumerate(load):
            held[place][d] += value
    return [tuple(each) for each in held]


def imbalance(values: Sequence[float]) -> float:
    """Largest over mean: 1 if all are equal (or zero), the number of values if one has all."""
    total = sum(values)
    return max(values) * len(values) / total if total > 0 else 1.0


def unevenness(held: Sequence[Load]) -> tuple[float, float]:
    """A key to compare packings, smaller is better: the worst `imbalance`, then a sum of squares.

    The sum decides if one load alone is too large for any bin.
    """
    columns = list(zip(*held, strict=True))
    worst = max(imbalance(column) for column in columns)
    squares = sum(share * share for each in _shares(held) for share in each)
    return round(worst, 9), round(squares, 9)


def too_full(held: Sequence[Load], tolerance: float) -> list[tuple[int, int]]:
    """(bin, index in the load) of each value above `tolerance` times the mean, fullest first."""
    means = [sum(column) / len(held) for column in zip(*held, strict=True)]
    ratios = [
        (value / mean, place, dimension)
        for place, load in enumerate(held)
        for dimension, (value, mean) in enumerate(zip(load, means, strict=True))
        if mean and value / mean > tolerance
    ]
    return [(place, d) for _, place, d in sorted(ratios, key=lambda r: (-r[0], r[1], r[2]))]


def _shares(loads: Sequence[Load]) -> list[Load]:
    """Each load as shares of the total, so that bytes and bytes per second can be compared."""
    totals = [sum(each) for each in zip(*loads, strict=True)]
    return [
        tuple(value / total if total else 0.0 for value, total in zip(load, totals, strict=True))
        for load in loads
    ]


def _pack(loads: Sequence[Load], order: Iterable[int], bins: int, fixed: Fixed) -> list[int]:
    shares = _shares(loads)
    places = [fixed.get(item, 0) for item in range(len(loads))]
    width = len(loads[0]) if loads else 1
    held = [[0.0] * width for _ in range(bins)]
    for item in (*fixed, *(item for item in order if item not in fixed)):
        share = shares[item]
        if item not in fixed:
            # By the bin's fullest quantity; then by the sum of all, which decides for loads of
            # zero.
            places[item] = min(
                range(bins),
                key=lambda b: (
                    max(h + s for h, s in zip(held[b], share, strict=True)),
                    sum(held[b]),
                    b,
                ),
            )
        for d, value in enumerate(share):
            held[places[item]][d] += value
    return places
