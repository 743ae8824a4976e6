"""A curve over the number of workers or ps, and where it bends."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorwire.errors import UsageError
from tensorwire.plan.prediction import Prediction, PredictionRequest

_POINTS = 16
_WORTH = 0.5
"""A worker, or ps, is past the bend that adds less than this share of what the first ones did."""
_FORM = "write it as workers=1..1000 or ps=1..20"


@dataclass(frozen=True)
class Range:
    """What `--sweep` says."""

    what: str
    """"workers" or "ps"."""
    first: int
    last: int

    def points(self) -> list[int]:
        """All of a short range; of a long one some, closer together where they are small."""
        count = self.last - self.first + 1
        if count <= _POINTS:
            return list(range(self.first, self.last + 1))
        ratio = math.log(self.last / self.first) / (_POINTS - 1)
        return sorted({round(self.first * math.exp(ratio * each)) for each in range(_POINTS)})


@dataclass(frozen=True)
class Curve:
    """Predictions that differ in the number of workers, or of ps."""

    what: str
    points: Sequence[tuple[int, Prediction]]
    bend: int | None
    """From this number on it is hardly worth while to add; None: worth it to the end."""

    @property
    def best(self) -> tuple[int, Prediction]:
        return max(self.points, key=lambda point: point[1].steps_per_s)


def parse(text: str) -> Range:
    """Reads "workers=1..1000".

    Raises:
        UsageError: it is not that.
    """
    match = re.fullmatch(r"(workers|ps)=(\d+)\.\.(\d+)", text.strip())
    if match is None:
        raise UsageError(f"--sweep {text}: {_FORM}")
    first, last = int(match[2]), int(match[3])
    if not 1 <= first < last:
        raise UsageError(f"--sweep {text}: from 1 or more up to more than that; {_FORM}")
    return Range(match[1], first, last)


def sweep(
    question: PredictionRequest, over: Range, on_point: Callable[[int], None] = lambda number: None
) -> Curve:
    """Asks at each point, and at some more where the curve bends.

    `on_point` is called before each; there are `_POINTS` and a few.
    """
    known: dict[int, Prediction] = {}

    def ask(number: int) -> None:
        if number not in known:
            on_point(number)
            known[number] = question.having(**{over.what: number}).answer()

    for number in over.points():
        ask(number)
    bend = _bend(known)
    while bend is not None:
        before = max((number for number in known if number < bend), default=bend)
        if bend - before <= max(1, bend // 10):
            break
        ask((before + bend) // 2)
        bend = _bend(known)
    return Curve(over.what, sorted(known.items()), bend)


def _bend(known: dict[int, Prediction]) -> int | None:
    """The first point from which on adding brings less than half of what the first ones brought."""
    points = [(number, known[number].steps_per_s) for number in sorted(known)]
    first, rate = points[0]
    worth = _WORTH * rate / first
    for index, (at, here) in enumerate(points[:-1]):
        # Of the whole rest, so that one uneven pair of points does not decide.
        rest = points[index + 1 :]
        if all(there - here < worth * (number - at) for number, there in rest):
            return at
    return None
