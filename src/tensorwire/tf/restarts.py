"""ClusterCoordinator's training, begun again in the same process when a ps has been lost."""

from __future__ import annotations

import gc
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_CONNECT_TIMEOUT_S = 2.0
_PAUSE_S = 0.2


def train_with_restarts(
    resolver: Any,
    train: Callable[[Any, Any], _Result],
    *,
    restarts: int = 10,
    wait_s: float = 600.0,
    **options: Any,
) -> _Result:
    """Trains with a ``ParameterServerStrategy``, and again from the checkpoint after each loss.

    `ClusterCoordinator` goes on by itself when a worker is lost. When a ps is lost, `join` raises
    an error, and neither the strategy nor its variables can be used any more. This function then
    waits until all tasks accept connections, connects to them anew, and calls `train` again::

        def train(strategy, coordinator):
            with strategy.scope():
                model = ...
            checkpoint = tf.train.Checkpoint(model=model)
            manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
            checkpoint.restore(manager.latest_checkpoint)
            ...  # schedule, join, manager.save()

        tensorwire.tf.train_with_restarts(resolver, train)

    TensorFlow keeps constants of the old functions on the workers, on each protocol. Where a ps on
    the same host has read them, its resident memory shows them, too.

    Args:
        resolver: the cluster resolver, as for ``ParameterServerStrategy``.
        train: called with a new strategy and its coordinator. It makes its variables, datasets and
            functions anew in each call, and keeps nothing of them elsewhere. Its result is
            returned.
        restarts: how many times `train` is called again.
        wait_s: how long to wait for a lost task.
        options: further ones of ``ParameterServerStrategy``.

    Raises:
        TensorwireError: a lost task did not come back in time.
        tf.errors.UnavailableError, tf.errors.AbortedError: tasks were lost more often than
            `restarts`. All other errors of `train` are raised at once.
    """
    for left in range(restarts, -1, -1):
        _await_tasks(resolver.cluster_spec(), wait_s)
        try:
            return _train_once(resolver, train, options)
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
            if left == 0:
                raise
            _log.warning("tensorwire: a task was lost, training begins again: %s", error.message)
        gc.collect()  # what the old strategy has must not be found by the new one
    raise ValueError("restarts must not be negative")


def _train_once(resolver: Any, train: Callable[[Any, Any], _Result], options: Any) -> _Result:
    strategy = tf.distribute.ParameterServerStrategy(resolver, **options)
    return train(strategy, tf.distribute.coordinator.ClusterCoordinator(strategy))


def _await_tasks(spec: tf.train.ClusterSpec, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    for job in ("ps", "worker"):
        for index in spec.task_indices(job) if job in spec.jobs else ():
            address = spec.task_address(job, index)
            while not _accepts(address):
                if time.monotonic() > deadline:
                    raise TensorwireError(
                        f"{job}:{index} at {address} accepts no connection after {wait_s:g} s: "
                        "start it again, or raise wait_s"
                    )
                time.sleep(_PAUSE_S)


def _accepts(address: str) -> bool:
    try:
        socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
