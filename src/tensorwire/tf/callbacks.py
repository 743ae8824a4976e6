"""Callbacks for Keras: a task's metrics and the breakdown of its steps, for TensorBoard.

Imported on first use, because Keras is slow to import, and there are two versions of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensorwire.metrics.breakdown import StepBreakdown
from tensorwire.metrics.collect import source
from tensorwire.metrics.rates import between
from tensorwire.plugin.loader import stats
from tensorwire.tf.hooks import write
from tensorwire.tf.step_trace import StepTimer


class FiguresCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Writes this task's metrics as scalars ``tensorwire/…`` for TensorBoard.

    Args:
        log_dir: folder of the events, as for `tf.keras.callbacks.TensorBoard`.
        every_steps: interval in training steps; each value is the mean over an interval.
    """

    def __init__(self, log_dir: str, every_steps: int = 100) -> None:
        super().__init__()
        self._every_steps = every_steps
        self._log_dir = log_dir
        self._source = source(stats)
        self._last = self._source()
        self._count = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._count += 1
        if self._count % self._every_steps != 0:
            return
        now = self._source()
        rates = between(self._last, now)
        self._last = now
        if rates is not None:
            write(self._log_dir, self._count, rates.scalars())


class StepBreakdownCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Splits the time of every `every_steps`-th step of training; see `StepTimer`.

    Args:
        every_steps: interval in training steps.
        log_dir: folder for scalars ``tensorwire/step/…``; None: they are not written.
        on_step: called with each breakdown.
    """

    def __init__(
        self,
        every_steps: int = 100,
        log_dir: str | None = None,
        on_step: Callable[[StepBreakdown], None] | None = None,
    ) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._on_step = on_step
        self._timer = StepTimer(every_steps, self._stepped)
        self._running = contextlib.ExitStack()

    @property
    def last(self) -> StepBreakdown | None:
        """Breakdown of the last sampled step."""
        return self._timer.last

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._running.enter_context(self._timer.step())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._running.close()

    def _stepped(self, breakdown: StepBreakdown) -> None:
        if self._on_step is not None:
            self._on_step(breakdown)
        if self._log_dir is not None:
            write(self._log_dir, breakdown.step, breakdown.scalars())
