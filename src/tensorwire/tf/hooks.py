"""Hooks for sessions: a task's metrics and the breakdown of its steps, for TensorBoard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tensorwire.metrics.breakdown import TOTALS, StepBreakdown, Waits, break_down
from tensorwire.metrics.collect import source
from tensorwire.metrics.rates import between
from tensorwire.plugin.loader import stats
from tensorwire.tf.step_trace import from_run_metadata


def write(log_dir: str, step: int, values: Mapping[str, float]) -> None:
    """Adds `values`, by their tags, to the events of `log_dir`."""
    values_of_step = [
        tf.compat.v1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
    ]
    with contextlib.ExitStack() as stack:
        if tf.executing_eagerly():  # the writer refuses this, although it runs no operation
            stack.enter_context(tf.Graph().as_default())
        writer = tf.compat.v1.summary.FileWriterCache.get(log_dir)
    writer.add_summary(tf.compat.v1.Summary(value=values_of_step), step)
    writer.flush()


_RunArgs = tf.compat.v1.train.SessionRunArgs


class _SampledHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Calls `_sampled` for every `every_steps`-th step of this session."""

    def __init__(self, every_steps: int, output_dir: str | None) -> None:
        if every_steps < 1:
            raise ValueError("every_steps is at least 1")
        self._every_steps = every_steps
        self._output_dir = output_dir
        self._count = 0
        self._sampling = False
        self._global_step: Any = None

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        self._count += 1
        self._sampling = self._count % self._every_steps == 0
        if not self._sampling:
            return None
        # Only for sampled steps, because the global step is on a ps and is sent over the wire.
        return _RunArgs(self._global_step, options=self._before(run_context))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._sampling:
            step = self._count if run_values.results is None else int(run_values.results)
            self._sampled(step, run_values)

    def _before(self, run_context: Any) -> Any:
        """RunOptions for the sampled step, or None."""

    def _sampled(self, step: int, run_values: Any) -> None:
        raise NotImplementedError

    def _write(self, step: int, values: dict[str, float]) -> None:
        if self._output_dir is not None:
            write(self._output_dir, step, values)


class FiguresHook(_SampledHook):
    """Writes this task's metrics as scalars ``tensorwire/…`` for TensorBoard.

    Args:
        output_dir: folder of the events, as for `tf.compat.v1.train.SummarySaverHook`.
        every_steps: interval in steps of this session; each value is the mean over an interval.
    """

    def __init__(self, output_dir: str, every_steps: int = 100) -> None:
        super().__init__(every_steps, output_dir)
        self._source = source(stats)
        self._last = self._source()

    def _sampled(self, step: int, run_values: Any) -> None:
        now = self._source()
        rates = between(self._last, now)
        self._last = now
        if rates is not None:
            self._write(step, rates.scalars())


class StepBreakdownHook(_SampledHook):
    """Splits the time of every `every_steps`-th step. Tracing makes these steps slower.

    Args:
        every_steps: interval in steps of this session.
        output_dir: folder for scalars ``tensorwire/step/…``; None: they are not written.
        on_step: called with each breakdown.
    """

    def __init__(
        self,
        every_steps: int = 100,
        output_dir: str | None = None,
        on_step: Callable[[StepBreakdown], None] | None = None,
    ) -> None:
        super().__init__(every_steps, output_dir)
        self._on_step = on_step
        self._waits = Waits(0, 0, 0)
        self._begun_us = 0.0
        self.last: StepBreakdown | None = None
        """Breakdown of the last sampled step."""

    def _before(self, run_context: Any) -> Any:
        self._waits = Waits.of(stats())
        self._begun_us = time.time() * 1e6
        return tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)

    def _sampled(self, step: int, run_values: Any) -> None:
        ended_us = time.time() * 1e6
        now = stats()
        task = now["tasks"][0]["task"] if now["tasks"] else ""
        trace = from_run_metadata(run_values.run_metadata, task)
        self.last = break_down(step, self._begun_us, ended_us, trace, self._waits, Waits.of(now))
        TOTALS.add(self.last)
        if self._on_step is not None:
            self._on_step(self.last)
        self._write(step, self.last.scalars())
