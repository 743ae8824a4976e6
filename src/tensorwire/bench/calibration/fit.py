"""Fits costs to observations of small jobs on one machine: pure functions.

CPU is fitted by non-negative least squares of relative errors, all protocols at once, because a
model's own operations are the same on each. Where threads wait for one another is found by the
lengths of steps, as a simulation of the same jobs predicts them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from tensorwire.plan.costs import EXACT, FUSED, GRPC, Costs, Kernels
from tensorwire.plan.job import Transfer

NOTHING = "nothing"
"""The case whose steps involve no ps."""
LOCAL = ""
"""The side of an observation whose variables were on the worker itself."""
# A step of a real job pulls and pushes: that has to be right, one direction alone less so.
_WEIGHT_OF_BOTH = 3.0
_WORKER, _PS = "worker", "ps"
_ROUNDS = 4
"""Until the factors of crowds, and the costs by which they are told, no longer change."""


@dataclass(frozen=True)
class Observation:
    """The observation of a job, for a step of one of its workers, in seconds."""

    case: str
    side: str
    """A side of `costs.SIDES`, or LOCAL."""
    workers: int
    ps: int
    variables: int
    to_worker: Transfer
    to_ps: Transfer
    model: str
    """Whose operations it ran; "": made of variables, whose kernels are known."""
    link_bits_per_s: float | None
    """Link rate of each task; None: the machine's loopback."""
    step_s: float
    worker_cpu_s: float
    ps_cpu_s: float
    """CPU time of all ps together."""
    machine_cpu_s: float
    """CPU time of all cores."""

    @property
    def moved_bytes(self) -> float:
        """Both ways."""
        return self.to_ps.bytes + self.to_worker.bytes

    @property
    def beside_s(self) -> float:
        """CPU time of no task: the kernel's work for packets, or other processes."""
        return self.machine_cpu_s - self.worker_cpu_s - self.ps_cpu_s


@dataclass(frozen=True)
class Fitted:
    """The fitted CPU costs, without any waiting."""

    costs: Mapping[str, Costs]
    """Costs by side."""
    kernels: Kernels
    own_s: Mapping[str, tuple[float, float]]
    """CPU of a model's own operations at its worker and at its ps, by model."""
    crowded: Mapping[str, float]
    """`Costs.crowded_factor` by side, of those that were observed in a crowd."""


def others_cores(observations: Iterable[Observation]) -> tuple[float, float]:
    """The fewest and the most cores that were busy with something else, as seen while no tensor was
    sent: all the time, and for a while."""
    cores = [max(0.0, each.beside_s / each.step_s) for each in _nothing(observations)]
    return min(cores), max(cores)


def fit_cpu(observations: Sequence[Observation]) -> Fitted:
    """Fits observations of one worker and one ps: every side's "nothing", LOCAL ones, and more.

    Those of a model in a crowd tell by how much all of a side's costs change there. They count for
    the costs, too, by that factor less: a model's operations are then observed twice.
    """
    others, _ = others_cores(observations)
    fitted = _fit(observations, others, {})
    for _ in range(_ROUNDS):
        crowded = {
            side: statistics.fmean(
                (each.machine_cpu_s - others * each.step_s / each.workers) / _cpu_s(each, fitted)
                for each in of_side
            )
            for side in fitted.costs
            if (of_side := [o for o in observations if _is_crowd(o) and o.side == side])
        }
        fitted = _fit(observations, others, crowded)
    return fitted


def _is_crowd(each: Observation) -> bool:
    return each.workers > 1 and each.model != ""


def _cpu_s(each: Observation, fitted: Fitted) -> float:
    """CPU of a step of a model, at all ends, as it is without a crowd."""
    costs = fitted.costs[each.side]
    of_transport: float = sum(
        amount * getattr(costs, name)
        for end in (_WORKER, _PS)
        for name, amount in _amounts(each, end).items()
    )
    return costs.step_cpu_s + sum(fitted.own_s[each.model]) + of_transport


def _fit(
    observations: Sequence[Observation], others: float, crowded: Mapping[str, float]
) -> Fitted:
    """`crowded`: of the sides whose crowds count."""
    step_s = statistics.fmean(each.worker_cpu_s for each in _nothing(observations))
    kernels = _kernels(observations, step_s)
    equations = []
    for each in observations:
        if each.side == LOCAL or each.case == NOTHING:
            continue
        if each.workers > 1 and not (_is_crowd(each) and each.side in crowded):
            continue
        less = crowded[each.side] if _is_crowd(each) else 1.0
        beside_s = max(0.0, each.beside_s - others * each.step_s / each.workers)
        is_both = each.to_ps.bytes > 0 and each.to_worker.bytes > 0
        for end, cpu_s, kernels_s in (
            (_WORKER, each.worker_cpu_s / less - step_s, kernels.worker_s),
            (_PS, each.ps_cpu_s / less, kernels.ps_s),
        ):
            amounts: dict[Hashable, float] = {
                (each.side, cost): amount for cost, amount in _amounts(each, end).items()
            }
            # The kernel works for the packets of both ends, charged to any process.
            sum_s = cpu_s + beside_s / less / 2
            if each.model:
                amounts[each.model, end] = 1.0
            else:
                sum_s -= kernels_s(each.variables, each.moved_bytes)
            weight = (_WEIGHT_OF_BOTH if is_both else 1.0) / max(cpu_s, 1e-6)
            equations.append(_Equation(amounts, sum_s, weight))
    found = _least_squares(equations)
    costs = {}
    for side in sorted({each.side for each in observations} - {LOCAL}):
        of_transport: dict[str, Any] = {
            cost: found.get((side, cost), 0.0) for cost in _TRANSPORT_COSTS
        }
        costs[side] = Costs(
            step_cpu_s=step_s,
            is_fused=side in (FUSED, EXACT),
            has_flow_control=side == GRPC,
            **of_transport,
        )
    return Fitted(
        costs=costs,
        kernels=kernels,
        own_s={
            model: (found[model, _WORKER], found[model, _PS])
            for model in sorted({each.model for each in observations} - {""})
        },
        crowded=crowded,
    )


def descend(
    misses: Callable[[Mapping[str, float]], float], choices: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """The choice of each name by which `misses` is least, looked for two names at a time.

    One at a time would end where two only help together. Begins with the first choice of each, and
    ends when no two make it better.
    """
    best = {name: values[0] for name, values in choices.items()}
    least, before = misses(best), math.inf
    pairs: list[tuple[str, ...]] = [*itertools.combinations(choices, 2)] or [tuple(choices)]
    while least < before:
        before = least
        for names in pairs:
            for values in itertools.product(*(choices[name] for name in names)):
                candidate = {**best, **dict(zip(names, values, strict=True))}
                if candidate != best and (missed := misses(candidate)) < least:
                    best, least = candidate, missed
    return best


def missed(expected_s: float, seen_s: float) -> float:
    """The error of a time: twice as bad as half; one large error is worse than many small."""
    return math.log(expected_s / seen_s) ** 2


_TRANSPORT_COSTS = (
    "request_worker_cpu_s",
    "request_ps_cpu_s",
    "tensor_send_cpu_s",
    "tensor_receive_cpu_s",
    "byte_send_cpu_s",
    "byte_receive_cpu_s",
)


def _amounts(each: Observation, end: str) -> dict[str, float]:
    """The number of times that each cost occurs at one end of a step."""
    sent, received = each.to_ps, each.to_worker
    if end == _PS:
        sent, received = received, sent
    return {
        f"request_{end}_cpu_s": float(each.ps),
        "tensor_send_cpu_s": sent.tensors,
        "tensor_receive_cpu_s": received.tensors,
        "byte_send_cpu_s": sent.bytes,
        "byte_receive_cpu_s": received.bytes,
    }


def _kernels(observations: Sequence[Observation], step_s: float) -> Kernels:
    """A step with its variables on the worker costs kernels alone; half are what a ps would run."""
    found = _least_squares(
        [
            _Equation(
                {"variable": each.variables, "byte": each.moved_bytes},
                each.worker_cpu_s - step_s,
                1 / each.worker_cpu_s,
            )
            for each in observations
            if each.side == LOCAL
        ]
    )
    variable_s, byte_s = found.get("variable", 0.0), found.get("byte", 0.0)
    return Kernels(variable_s / 2, byte_s / 2, variable_s / 2, byte_s / 2)


def _nothing(observations: Iterable[Observation]) -> list[Observation]:
    return [each for each in observations if each.case == NOTHING]


@dataclass(frozen=True)
class _Equation:
    """Costs that occur so often, by their names, add up to so many seconds."""

    amounts: Mapping[Hashable, float]
    sum_s: float
    weight: float


def _least_squares(equations: Sequence[_Equation]) -> dict[Hashable, float]:
    """The costs, none below zero, that solve the equations best."""
    names = [*dict.fromkeys(name for each in equations for name in each.amounts)]
    weights = np.array([each.weight for each in equations])
    matrix = np.array(
        [[each.amounts.get(name, 0.0) for name in names] for each in equations], float
    )
    matrix *= weights[:, None]
    # Counts and bytes differ by millions: unit columns keep the solver's tolerances meaningful.
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    sums = np.array([max(0.0, each.sum_s) for each in equations])
    found, _ = nnls(matrix / scale, sums * weights)
    return dict(zip(names, (found / scale).tolist(), strict=True))
