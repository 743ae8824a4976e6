"""What to change: other clusters, placements and protocols tried, and what each would bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tensorwire.plan.cluster import COLOCATED, ISOLATED, link_text
from tensorwire.plan.loads import loads
from tensorwire.plan.prediction import BY_TRAFFIC, Prediction, PredictionRequest, placed

SATURATED = 0.9
_WORTH = 1.05
_PLACEMENTS = {
    "balanced": "place variables with `balanced`, which splits those above a fair share",
    BY_TRAFFIC: "place them with `balanced` and --traffic, the figures of a run",
}


@dataclass(frozen=True)
class Change:
    """One change, with everything else as it was."""

    text: str
    """What to do."""
    steps_per_s: float
    gain: float
    """How many times the steps a second."""


def saturated(prediction: Prediction) -> str | None:
    """What has no more to give; None where nothing is near its limit."""
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
    on_try: Callable[[str], None] = lambda text: None,
) -> list[Change]:
    """Those that bring something, the most first.

    `on_try` is told each before it is tried; there are nine at most.
    """
    found = []
    for text, changed in alternatives(question):
        on_try(text)
        rate = changed.answer().steps_per_s
        gain = rate / prediction.steps_per_s
        if gain >= _WORTH:
            found.append(Change(text, rate, gain))
    return sorted(found, key=lambda each: -each.gain)


def alternatives(question: PredictionRequest) -> Iterator[tuple[str, PredictionRequest]]:
    """One thing changed in each."""
    shape, known = question.shape, question.calibration.costs
    hottest = hottest_variable(question)
    now = ""
    if hottest is not None and hottest[2] > 1.5 / shape.ps and shape.ps > 1:
        now = f" (now ps:{hottest[0]} has {hottest[2]:.0%} of all bytes for {hottest[1]})"
    for placement, text in _PLACEMENTS.items():
        if placement != question.placement:
            yield text + now, question.having(placement=placement)
    protocol = question.side.removesuffix(" fused")
    if protocol == "grpc" and (side := question.side.replace("grpc", "grpc++")) in known:
        yield "use grpc++", question.having(side=side)
    if (fused := f"{protocol} fused") != question.side and fused in known:
        yield "send tensors together (tensor_fuse)", question.having(side=fused)
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
    if shape.ps_cores is not None:
        yield (
            f"give each ps {2 * shape.ps_cores:g} cores",
            question.having(ps_cores=2 * shape.ps_cores),
        )
    if shape.worker_cores is not None:
        yield (
            f"give each worker {2 * shape.worker_cores:g} cores",
            question.having(worker_cores=2 * shape.worker_cores),
        )
