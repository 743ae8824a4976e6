"""A Saver that restores only what a lost ps took with it, and saves each ps at one moment."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.training.saver import BulkSaverBuilder

from tensorwire.plugin.loader import operations

_v1 = tf.compat.v1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    """What is saved of one device."""

    device: str
    has_values: Any
    """A tensor: whether all variables have values."""
    saver: Any
    mark: Any | None
    """Gives the part's own variable a value, if it has one."""


class Saver(tf.compat.v1.train.Saver):  # type: ignore[misc]
    """A Saver for sessions that recover by themselves, in asynchronous training.

    ::

        saver = tensorwire.tf.Saver(partial_restore=True, consistent=True)
        scaffold = tf.compat.v1.train.Scaffold(saver=saver)
        with tf.compat.v1.train.MonitoredTrainingSession(scaffold=scaffold, ...) as session:

    Args:
        partial_restore: Restores the devices that have lost variables; all others keep their newer
            values. When a session begins, stock TensorFlow restores all variables from the last
            checkpoint. So one ps that was restarted takes all others back with it, and a chief
            that was restarted takes all ps. This Saver asks each device first: if some of its
            variables have no value, what it has in the checkpoint is restored, together with its
            tables and other saved objects that are no variables. The variables of one step are
            then of different moments, as far as the checkpoint is behind. Asynchronous training is
            used to that; synchronous training is not. Each variable must have its device when the
            graph is complete (`replica_device_setter`, placements of `tensorwire.tf.placement`):
            all variables without one count as one device. `restore` changes nothing in a session
            whose variables all have values; to go back to a checkpoint there, use a plain Saver.
        consistent: Saves all variables of a device as they are at one moment, between two updates:
            a table and its slots fit together. Updates and lookups of tables wait while these are
            copied. Stock TensorFlow reads each variable at a moment of its own. Reference
            variables are saved as by stock TensorFlow, with a warning: nothing stops their
            updates. An update that is made of several operations (Adam on rows) may be half done.
            All tasks must have imported `tensorwire.tf`.
        options: those of ``tf.compat.v1.train.Saver``. `sharded` is True unless given, as in the
            Saver that a session makes for itself: each ps saves its own part. With
            `partial_restore`, there is no `var_list`: all is saved that a Saver saves by default.
    """

    def __init__(
        self, *, partial_restore: bool = False, consistent: bool = False, **options: Any
    ) -> None:
        if partial_restore and options.get("var_list") is not None:
            raise TypeError("Saver(partial_restore=True) saves all variables: leave var_list out")
        if consistent:
            if options.get("builder") is not None:
                raise TypeError("Saver(consistent=True) has its own builder: leave builder out")
            options["builder"] = _ConsistentBuilder(
                options.get("write_version", _v1.train.SaverDef.V2)
            )
        self._partial_restore = partial_restore
        self._parts: list[_Part] = []
        super().__init__(**{"sharded": True, **options})

    def build(self) -> None:
        super().build()  # raises RuntimeError in eager code
        if self._parts or not self._partial_restore:
            return  # built before
        objects = [
            *_v1.global_variables(),
            *_v1.get_collection(_v1.GraphKeys.SAVEABLE_OBJECTS),
        ]
        with tf.name_scope("partial_restore"):
            for device in dict.fromkeys(each.device for each in objects):
                self._parts.append(_part(device, [o for o in objects if o.device == device]))

    def save(self, sess: Any, *args: Any, **options: Any) -> Any:
        path = super().save(sess, *args, **options)
        self._mark(sess)
        return path

    def restore(self, sess: Any, save_path: str) -> None:
        has_values = sess.run([part.has_values for part in self._parts])
        if any(has_values):
            for part, has in zip(self._parts, has_values, strict=True):
                if not has:
                    _log.warning(
                        "tensorwire: %s has lost its variables: they are restored from %s, and no "
                        "others",
                        part.device or "what has no device",
                        save_path,
                    )
                    part.saver.restore(sess, save_path)
        else:
            super().restore(sess, save_path)
        self._mark(sess)

    def _mark(self, sess: Any) -> None:
        """Notes that no part is lost now."""
        sess.run([part.mark for part in self._parts if part.mark is not None])


def _part(device: str, objects: list[Any]) -> _Part:
    with tf.device(device):
        variables = [each for each in objects if hasattr(each, "initializer")]
        mark = None
        if not variables:
            # Nobody knows whether a table was lost: it is there, and empty. This variable, which is
            # not saved, is lost with it.
            own = _v1.Variable(0, trainable=False, collections=[], use_resource=True, name="lost")
            variables, mark = [own], own.initializer
        has_values = tf.reduce_all(tf.stack([_v1.is_variable_initialized(v) for v in variables]))
        return _Part(device, has_values, _v1.train.Saver(objects), mark)


class _ConsistentBuilder(BulkSaverBuilder):  # type: ignore[misc]
    """Reads all resource variables of a device by one operation."""

    def save_op(self, filename_tensor: Any, saveables: Sequence[Any]) -> Any:
        references = [each.name for each in saveables if isinstance(each, self.VariableSaveable)]
        if references:
            _log.warning(
                "tensorwire: %d reference variables, such as %s, are not saved at one moment: "
                "call tf.compat.v1.enable_resource_variables() before they are made",
                len(references),
                references[0],
            )
        by_device = defaultdict(list)
        for number, saveable in enumerate(saveables):
            if isinstance(saveable, self.ResourceVariableSaveable):
                by_device[saveable.device].append(number)
        read: dict[int, Any] = {}
        for device, numbers in by_device.items():
            with tf.device(device), tf.device("/device:CPU:0"):
                values = operations().tensorwire_read_together(
                    variables=[saveables[number].handle_op for number in numbers],
                    dtypes=[saveables[number].specs[0].dtype for number in numbers],
                )
            read |= dict(zip(numbers, values, strict=True))
        return super().save_op(
            filename_tensor,
            [
                self._with_value(saveable, read[number]) if number in read else saveable
                for number, saveable in enumerate(saveables)
            ],
        )

    def _with_value(self, saveable: Any, value: Any) -> Any:
        (spec,) = saveable.specs
        spec = self.SaveSpec(value, spec.slice_spec, spec.name, spec.dtype, spec.device)
        return self.SaveableObject(saveable.op, [spec], saveable.name)
