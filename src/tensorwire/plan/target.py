"""The cheapest cluster that takes so many steps a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.plan.cluster import Shape
from tensorwire.plan.prediction import Prediction, PredictionRequest

_PS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64, 80, 100)
MOST_WORKERS = 2000
_PLATEAU = 1.02
"""Twice the workers bring less than this: no number of them reaches the target."""


@dataclass(frozen=True)
class Prices:
    """What a cluster costs, in whatever money the user thinks in."""

    core: float
    gbit: float
    """Of a machine's link."""

    def of(self, shape: Shape) -> float:
        """All machines, with all of their cores, or the cores of containers where those are."""
        cluster = shape.cluster()
        gbits = sum((host.link_bytes_per_s or 0.0) * 8 / 1e9 for host in cluster.hosts)
        if shape.worker_cores is not None and shape.ps_cores is not None:
            cores = shape.workers * shape.worker_cores + shape.ps * shape.ps_cores
        else:
            cores = sum(cluster.machines)
        return self.core * cores + self.gbit * gbits


@dataclass(frozen=True)
class Offer:
    """A cluster that reaches the target."""

    question: PredictionRequest
    prediction: Prediction
    price: float


def cheapest(
    questions: list[PredictionRequest],
    steps_per_s: float,
    prices: Prices,
    on_try: Callable[[str], None] = lambda text: None,
) -> list[Offer]:
    """The cheapest cluster for each of the questions that can reach it, the cheapest first.

    The numbers of workers and of ps of the questions do not count.

    Raises:
        TensorwireError: none of them reaches it.
    """
    if min(prices.core, prices.gbit) < 0 or prices.core + prices.gbit == 0:
        raise UsageError("give --price-core or --price-gbit: without prices nothing is cheapest")
    found = [offer for each in questions if (offer := _best(each, steps_per_s, prices, on_try))]
    if not found:
        raise TensorwireError(
            f"no cluster of up to {_PS[-1]} ps and {MOST_WORKERS} workers takes {steps_per_s:g} "
            "steps a second: try other --link, --placement, --protocol or --cores"
        )
    return sorted(found, key=lambda offer: offer.price)


def _best(
    question: PredictionRequest, target: float, prices: Prices, on_try: Callable[[str], None]
) -> Offer | None:
    best: Offer | None = None
    for ps in _PS:
        # No more workers than those of a cluster that is cheaper than the best so far.
        limit = MOST_WORKERS if best is None else _most_workers(question, ps, prices, best.price)
        if limit < 1:
            break
        on_try(f"{question.side}, {question.placement}: {ps} ps")
        offer = _fewest_workers(question.having(ps=ps), target, prices, limit)
        if offer is not None and (best is None or offer.price < best.price):
            best = offer
    return best


def _most_workers(question: PredictionRequest, ps: int, prices: Prices, below: float) -> int:
    """How many workers with so many ps cost less than `below`."""
    low, high = 0, MOST_WORKERS
    while low < high:
        middle = (low + high + 1) // 2
        shape = question.having(ps=ps, workers=middle).shape
        if prices.of(shape) >= below:
            high = middle - 1
        else:
            low = middle
    return low


def _fewest_workers(
    question: PredictionRequest, target: float, prices: Prices, limit: int
) -> Offer | None:
    """The fewest that reach it; more workers are taken never to be slower."""
    if question.having(workers=limit).bound() < target:
        return None

    def asked(workers: int) -> tuple[PredictionRequest, Prediction]:
        changed = question.having(workers=workers)
        return changed, changed.answer()

    low, high = 0, 1
    here, there = None, asked(high)
    while there[1].steps_per_s < target:
        if here is not None and there[1].steps_per_s < _PLATEAU * here[1].steps_per_s:
            return None
        if high >= limit:
            return None
        low, high = high, min(2 * high, limit)
        here, there = there, asked(high)
    while high - low > 1:
        middle = (low + high) // 2
        between = asked(middle)
        if between[1].steps_per_s < target:
            low = middle
        else:
            high, there = middle, between
    return Offer(*there, prices.of(there[0].shape))
