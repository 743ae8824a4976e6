"""A Saver that restores only what a lost ps took with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_v1 = tf.compat.v1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    """What is saved of one device."""

    device: str
    has_values: Any
    """A tensor: whether all variables have values. Of other objects nobody knows; then False."""
    saver: Any


class PartialRestoreSaver(tf.compat.v1.train.Saver):  # type: ignore[misc]
    """Restores the devices that have lost variables; all others keep their newer values.

    For sessions that recover by themselves, in asynchronous training::

        scaffold = tf.compat.v1.train.Scaffold(saver=tensorwire.tf.PartialRestoreSaver())
        with tf.compat.v1.train.MonitoredTrainingSession(scaffold=scaffold, ...) as session:

    When a session begins, stock TensorFlow restores all variables from the last checkpoint. So one
    ps that was restarted takes all others back with it, and a chief that was restarted takes all
    ps. This Saver asks each device first: if some of its variables have no value, what it has in
    the checkpoint is restored, together with its tables and other saved objects that are no
    variables. The variables of one step are then of different moments, as far as the checkpoint is
    behind. Asynchronous training is used to that; synchronous training is not.

    Each variable must have its device when the graph is complete (`replica_device_setter`,
    placements of `tensorwire.tf.placement`): a device is restored as a whole, and all variables
    without one count as one device.

    Args:
        options: those of ``tf.compat.v1.train.Saver`` but `var_list`: it saves what a Saver saves
            by default. Its `restore` changes nothing in a session whose variables all have
            values; to go back to a checkpoint there, use a plain Saver.
    """

    def __init__(self, **options: Any) -> None:
        if "var_list" in options:
            raise TypeError("PartialRestoreSaver saves all variables: leave var_list out")
        self._parts: list[_Part] = []
        super().__init__(**options)

    def build(self) -> None:
        super().build()  # raises RuntimeError in eager code
        if self._parts:
            return  # built before
        objects = [*_v1.global_variables(), *_v1.get_collection(_v1.GraphKeys.SAVEABLE_OBJECTS)]
        with tf.name_scope("partial_restore"):
            for device in dict.fromkeys(each.device for each in objects):
                self._parts.append(_part(device, [o for o in objects if o.device == device]))

    def restore(self, sess: Any, save_path: str) -> None:
        has_values = sess.run([part.has_values for part in self._parts])
        if not any(has_values):
            super().restore(sess, save_path)
            return
        for part, has in zip(self._parts, has_values, strict=True):
            if not has:
                _log.warning(
                    "tensorwire: %s has lost its variables: they are restored from %s, and no "
                    "others",
                    part.device or "what has no device",
                    save_path,
                )
                part.saver.restore(sess, save_path)


def _part(device: str, objects: list[Any]) -> _Part:
    with tf.device(device):
        has_values = [
            _v1.is_variable_initialized(each) for each in objects if hasattr(each, "initializer")
        ]
        return _Part(
            device, tf.reduce_all(tf.stack(has_values or [False])), _v1.train.Saver(objects)
        )
