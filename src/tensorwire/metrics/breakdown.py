"""The parts of one step's time: input, own compute, a ps's compute, the wire, and the rest.

The step's trace shows when this task computed and when it waited for input; the rest of the step is
waiting. grpc++ counts how long Recvs waited for tensors from other tasks, and which part of that
was because of the producer. A step may also wait without a Recv, for a ps that still applies
gradients. This is taken from the other tasks' part of the trace, if there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tensorwire.metrics.task_metrics import StepTotals

Interval = tuple[float, float]
"""Begin and end in microseconds."""


@dataclass(frozen=True)
class StepTrace:
    """The times of the operations of a step. Intervals may overlap, and have any order."""

    compute: Sequence[Interval] = ()
    """When kernels of this task ran."""
    input: Sequence[Interval] = ()
    """When the task fetched input; same clock."""
    others: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    """When kernels of each other task ran, by that task's clock; empty if unknown."""


@dataclass(frozen=True)
class Waits:
    """Waiting times of this process's Recvs since its start; see `TaskMetrics`."""

    not_ready_us: int
    wire_us: int
    waiting_us: int

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> Waits:
        """Reads what `tensorwire.tf.stats` returns."""
        return cls(stats["not_ready_us"], stats["wire_us"], stats["recv_waiting_us"])


@dataclass(frozen=True)
class StepBreakdown:
    """One step; the five parts add up to `step_s`."""

    step: int
    step_s: float
    input_s: float
    """Waiting for input while no kernel of this task ran."""
    compute_s: float
    """Time in which at least one kernel of this task ran."""
    ps_s: float
    """Waiting for another task to compute."""
    wire_s: float
    """Waiting for a tensor that was already computed."""
    rest_s: float
    """The rest: TensorFlow between kernels, Python around the step, unexplained waiting."""

    def scalars(self) -> dict[str, float]:
        """Tags and values for TensorBoard."""
        values = asdict(self)
        del values["step"]
        return {f"tensorwire/step/{name}": value for name, value in values.items()}


def break_down(
    step: int, begin_us: float, end_us: float, trace: StepTrace, before: Waits, after: Waits
) -> StepBreakdown:
    """Splits the step from `begin_us` to `end_us` (the clock of `trace.compute`).

    `before` and `after` were read right before its begin and right after its end.
    """
    whole = [(begin_us, end_us)]
    compute = union(trace.compute, whole)
    active = union([*trace.compute, *trace.input], whole)
    compute_us = _length(compute)
    input_us = _length(active) - compute_us
    left_us = end_us - begin_us - _length(active)

    recv_us = min(left_us, float(after.waiting_us - before.waiting_us))
    not_ready_us = after.not_ready_us - before.not_ready_us
    waited_us = not_ready_us + after.wire_us - before.wire_us
    wire_us = recv_us * (1 - not_ready_us / waited_us) if waited_us > 0 else 0.0
    ps_us = recv_us - wire_us
    left_us -= recv_us

    # The time after this task's last operation, in which another task still works.
    own_end = max((end for _, end in active), default=begin_us)
    tail = [(own_end, end_us)]
    ends = [
        _length(union(_within(intervals, begin_us, end_us), tail))
        for intervals in trace.others.values()
    ]
    tail_us = min(left_us, max(ends, default=0.0))
    return StepBreakdown(
        step=step,
        step_s=(end_us - begin_us) / 1e6,
        input_s=input_us / 1e6,
        compute_s=compute_us / 1e6,
        ps_s=(ps_us + tail_us) / 1e6,
        wire_s=wire_us / 1e6,
        rest_s=(left_us - tail_us) / 1e6,
    )


def union(intervals: Iterable[Interval], within: Iterable[Interval]) -> list[Interval]:
    """The time that at least one of `intervals` covers, cut to `within` (which do not overlap)."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return [
        (max(begin, low), min(end, high))
        for low, high in within
        for begin, end in merged
        if max(begin, low) < min(end, high)
    ]


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _within(intervals: Sequence[Interval], begin: float, end: float) -> list[Interval]:
    """Intervals of another host's clock, shifted by the smallest amount that puts them between
    `begin` and `end`, because they were part of the step.
    """
    if not intervals:
        return []
    first = min(each[0] for each in intervals)
    last = max(each[1] for each in intervals)
    shift = min(0.0, end - last) or max(0.0, begin - first)
    return [(low + shift, high + shift) for low, high in intervals]


class _Totals:
    """Sums of all breakdowns of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = StepTotals()

    def add(self, step: StepBreakdown) -> None:
        """Adds a step to the sums."""
        with self._lock:
            parts = {
                name: getattr(self._now, name) + getattr(step, name)
                for name in ("step_s", "input_s", "compute_s", "ps_s", "wire_s", "rest_s")
            }
            self._now = StepTotals(sampled=self._now.sampled + 1, **parts)

    def now(self) -> StepTotals:
        return self._now


TOTALS = _Totals()
"""The totals of all sampled steps, which the endpoint serves."""
