"""Searches over clusters: a sweep, the smallest for a rate, and what single changes bring."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.plan.cluster import COLOCATED, ISOLATED, Shape, link_text
from tensorwire.plan.costs import EXACT, FUSED
from tensorwire.plan.loads import loads
from tensorwire.plan.prediction import Prediction, PredictionRequest, answers, placed

_POINTS = 16
_WORTH_GROWING = 0.5
"""A worker, or ps, is past the bend that adds less than this share of what the first ones did."""
_FORM = "write it as workers=1..1000 or ps=1..20"


@dataclass(frozen=True)
class Range:
    """The values of `--sweep`."""

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
    """The number from which on adding more hardly pays; None: it pays to the end."""

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
    worth = _WORTH_GROWING * rate / first
    for index, (at, here) in enumerate(points[:-1]):
        # Of the whole rest, so that one uneven pair of points does not decide.
        rest = points[index + 1 :]
        if all(there - here < worth * (number - at) for number, there in rest):
            return at
    return None


_PS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64, 80, 100)
MOST_WORKERS = 2000
_PLATEAU = 1.02
"""Twice the workers bring less than this: no number of them reaches the target."""


def cores_of(shape: Shape) -> float:
    """The cores of all machines, or those of all containers where these have limits."""
    if shape.worker_cores is not None and shape.ps_cores is not None:
        return shape.workers * shape.worker_cores + shape.ps * shape.ps_cores
    return shape.machines * shape.cores


@dataclass(frozen=True)
class Offer:
    """A cluster that reaches the target."""

    question: PredictionRequest
    prediction: Prediction

    @property
    def cores(self) -> float:
        return cores_of(self.question.shape)


def smallest(
    questions: list[PredictionRequest],
    steps_per_s: float,
    on_try: Callable[[str], None] = lambda text: None,
) -> list[Offer]:
    """For each question that can reach the target, its cluster with the fewest cores, in order.

    The numbers of workers and of ps of the questions do not count.

    Raises:
        TensorwireError: none of them reaches it.
    """
    found = [offer for each in questions if (offer := _best(each, steps_per_s, on_try))]
    if not found:
        raise TensorwireError(
            f"no cluster of up to {_PS[-1]} ps and {MOST_WORKERS} workers takes {steps_per_s:g} "
            "steps a second: try other --link, --placement, --protocol or --cores"
        )
    return sorted(found, key=lambda offer: offer.cores)


def _best(
    question: PredictionRequest, target: float, on_try: Callable[[str], None]
) -> Offer | None:
    best: Offer | None = None
    for ps in _PS:
        # No more workers than those of a cluster that is smaller than the best so far.
        limit = MOST_WORKERS if best is None else _most_workers(question, ps, best.cores)
        if limit < 1:
            break
        on_try(f"{question.side}, {question.placement}: {ps} ps")
        offer = _fewest_workers(question.having(ps=ps), target, limit)
        if offer is not None and (best is None or offer.cores < best.cores):
            best = offer
    return best


def _most_workers(question: PredictionRequest, ps: int, below: float) -> int:
    """The largest number of workers that, with so many ps, have less than `below` cores."""

    def cores(workers: int) -> float:
        return cores_of(question.having(ps=ps, workers=workers).shape)

    return bisect.bisect_left(range(1, MOST_WORKERS + 1), below, key=cores)


def _fewest_workers(question: PredictionRequest, target: float, limit: int) -> Offer | None:
    """The fewest that reach it; more workers are taken never to be slower."""
    if question.having(workers=limit).bound() < target:
        return None

    def asked(workers: int) -> Offer:
        changed = question.having(workers=workers)
        return Offer(changed, changed.answer())

    low, high = 0, 1
    here, there = None, asked(high)
    while there.prediction.steps_per_s < target:
        if here is not None and there.prediction.steps_per_s < _PLATEAU * here:
            return None
        if high >= limit:
            return None
        low, high = high, min(2 * high, limit)
        here, there = there.prediction.steps_per_s, asked(high)
    while high - low > 1:
        middle = (low + high) // 2
        between = asked(middle)
        if between.prediction.steps_per_s < target:
            low = middle
        else:
            high, there = middle, between
    return there


SATURATED = 0.9
_WORTH_CHANGING = 1.05


@dataclass(frozen=True)
class Change:
    """One change to a cluster, with everything else as it was."""

    text: str
    """The advice."""
    steps_per_s: float
    """After it; of one that does not help, this many at most."""
    gain: float
    """The steps a second after the change divided by those before."""

    @property
    def helps(self) -> bool:
        """Whether it is worth making."""
        return self.gain >= _WORTH_CHANGING


def saturated(prediction: Prediction) -> str | None:
    """The saturated resource; None if none is near its limit."""
    first = prediction.uses[0]
    return first.name if first.share >= SATURATED else None


def hottest_variable(question: PredictionRequest) -> tuple[int, str, float] | None:
    """The ps that moves most, the variable that moves most there, and its share of all bytes.

    None where nothing moves.
    """
    plan = placed(question.job, question.placement, question.shape.ps)
    moved = [each.bytes for each in loads(question.job, plan)]
    if not sum(moved):
        return None
    ps = moved.index(max(moved))
    of_variable = {
        each.variable.name: (each.asked + each.pulled + each.pushed).bytes / len(tasks)
        for each in question.job.variables
        if ps in (tasks := plan.tasks[each.variable.name])
    }
    name = max(of_variable, key=lambda each: of_variable[each])
    return ps, name, of_variable[name] / sum(moved)


def changes(
    question: PredictionRequest,
    prediction: Prediction,
    known: Sequence[tuple[PredictionRequest, Prediction]] = (),
    on_try: Callable[[str], None] = lambda text: None,
) -> list[Change]:
    """All changes to the cluster of `question`, the largest gain first.

    What is among `known`, and what by its bound cannot help, is not simulated. `on_try` is called
    with each of the others before they are; there are nine at most.
    """
    rates: dict[str, float] = {}
    untold: dict[str, PredictionRequest] = {}
    for text, changed in alternatives(question):
        answer = next((answer for asked, answer in known if asked == changed), None)
        if answer is not None:
            rates[text] = answer.steps_per_s
        elif (bound := changed.bound()) < _WORTH_CHANGING * prediction.steps_per_s:
            rates[text] = bound
        else:
            on_try(text)
            untold[text] = changed
    for text, found in zip(untold, answers([*untold.values()]), strict=True):
        rates[text] = found.steps_per_s
    made = [Change(text, rate, rate / prediction.steps_per_s) for text, rate in rates.items()]
    return sorted(made, key=lambda each: -each.gain)


def alternatives(question: PredictionRequest) -> Iterator[tuple[str, PredictionRequest]]:
    """Clusters with one thing changed in each."""
    shape, known = question.shape, question.calibration.costs
    hottest = hottest_variable(question)
    now = ""
    if hottest is not None and hottest[2] > 1.5 / shape.ps and shape.ps > 1:
        now = f" (now ps:{hottest[0]} has {hottest[2]:.0%} of all bytes for {hottest[1]})"
    if question.placement != "balanced":
        text = "place variables with `balanced`, which splits those above a fair share"
        yield text + now, question.having(placement="balanced")
    if question.side == "grpc" and "grpc++" in known:
        yield "use grpc++", question.having(side="grpc++")
    if question.side == "grpc++" and FUSED in known:
        yield "send tensors together (tensor_fuse)", question.having(side=FUSED)
    if question.side in ("grpc++", FUSED) and question.knows_exact:
        yield "rewrite graphs (exact_rewrites)", question.having(side=EXACT)
    more = 2 * shape.ps
    if shape.layout == COLOCATED:
        yield (
            "put the ps on machines of their own",
            question.having(
                layout=ISOLATED, workers_per_host=max(1, -(-shape.workers // shape.ps))
            ),
        )
    else:
        yield f"take {more} ps", question.having(ps=more)
    yield f"take {2 * shape.workers} workers", question.having(workers=2 * shape.workers)
    if shape.link_bytes_per_s is not None:
        faster = 2 * shape.link_bytes_per_s
        yield f"take links of {link_text(faster)}", question.having(link_bytes_per_s=faster)
    for task, field in (("ps", "ps_cores"), ("worker", "worker_cores")):
        if (cores := getattr(shape, field)) is not None:
            yield f"give each {task} {2 * cores:g} cores", question.having(**{field: 2 * cores})
