"""The breakdown of steps that are functions of TF2, in a loop of one's own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from tensorwire.metrics.breakdown import (
    TOTALS,
    Interval,
    StepBreakdown,
    StepTrace,
    Waits,
    break_down,
)
from tensorwire.plugin.loader import stats
from tensorwire.tf.step_trace import FunctionTrace


class StepTimer:
    """Splits the time of every `every_steps`-th step, which is traced and slower for that.

        timer = tensorwire.tf.StepTimer()
        for _ in range(steps):
            with timer.step():
                with timer.input():
                    batch = next(batches)
                train_step(batch)
        print(timer.last)

    What a function fetches from an iterator by itself counts as input without `input`. Waiting for
    a ps that has work to do, but no tensor to give to this task, is part of the rest.
    """

    def __init__(
        self, every_steps: int = 100, on_step: Callable[[StepBreakdown], None] | None = None
    ) -> None:
        """`on_step` is called with each breakdown."""
        if every_steps < 1:
            raise ValueError("every_steps is at least 1")
        self._every_steps = every_steps
        self._on_step = on_step
        self._count = 0
        self._inputs: list[Interval] = []
        self.last: StepBreakdown | None = None
        """Of the step that was sampled last."""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around one step. What an exception leaves is no step."""
        self._count += 1
        if self._count % self._every_steps != 0:
            yield
            return
        self._inputs = []
        before = Waits.of(stats())
        trace = FunctionTrace()
        begin_us = time.time() * 1e6
        try:
            yield
        finally:
            end_us = time.time() * 1e6
            seen = trace.stop()
        after = Waits.of(stats())
        everything = StepTrace(seen.compute, [*seen.input, *self._inputs], seen.others)
        self.last = break_down(self._count, begin_us, end_us, everything, before, after)
        TOTALS.add(self.last)
        if self._on_step is not None:
            self._on_step(self.last)

    @contextlib.contextmanager
    def input(self) -> Iterator[None]:
        """Around what fetches a step's input, within `step`."""
        begin_us = time.time() * 1e6
        try:
            yield
        finally:
            self._inputs.append((begin_us, time.time() * 1e6))
