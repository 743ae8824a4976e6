"""Scalars for TensorBoard, which need not be installed where they are written."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import tensorflow as tf


def write(log_dir: str, step: int, values: Mapping[str, float]) -> None:
    """Adds `values`, by their tags, to the events of `log_dir`."""
    values_of_step = [
        tf.compat.v1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
    ]
    with contextlib.ExitStack() as stack:
        if tf.executing_eagerly():  # which this writer refuses, though it runs no operation
            stack.enter_context(tf.Graph().as_default())
        writer = tf.compat.v1.summary.FileWriterCache.get(log_dir)
    writer.add_summary(tf.compat.v1.Summary(value=values_of_step), step)
    writer.flush()
