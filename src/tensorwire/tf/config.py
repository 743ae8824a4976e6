"""A session's configuration with the options that GRPC++ adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorwire.cluster import device_filters
from tensorwire.errors import UsageError
from tensorwire.plugin.rewrites import choose

if TYPE_CHECKING:
    import tensorflow as tf


def ConfigProto(
    tensor_fuse: bool | None = None,
    *,
    unique_pull: bool | None = None,
    summed_push: bool | None = None,
    bundles: bool | None = None,
    exact_rewrites: bool | None = None,
    wire_dtype: str | tf.DType | None = None,
    wire_dtype_exclude: str | Sequence[str] = (),
    cluster: tf.train.ClusterSpec | Mapping[str, Any] | None = None,
    job_name: str = "worker",
    task_index: int = 0,
    **kwargs: Any,
) -> tf.compat.v1.ConfigProto:
    """Makes a stock ``tf.compat.v1.ConfigProto`` from `kwargs`.

    With ``tensor_fuse``, tensors between the same two tasks at the same depth of the graph are sent
    as one message, on "grpc" as well as on "grpc++". Results stay the same. Every task of the
    cluster must have imported ``tensorwire.tf``.

    With ``unique_pull``, ids that repeat in a lookup are sent once and their rows come back once.
    With ``summed_push``, the gradients of equal ids are summed before they are sent to the ps.
    With ``bundles``, independent operations of one kind run as one, such as the lookups in all
    tables of a ps. Results of these three are bitwise identical. ``exact_rewrites`` switches on all
    three and ``tensor_fuse``. False switches off what ``exact_rewrites`` or the environment
    (``TENSORWIRE_REWRITES``, ``tensorwire run --exact-rewrites``) switches on.

    With ``wire_dtype="bfloat16"`` or ``"float16"``, training steps send float32 in 16 bits between
    tasks. Pulled rows and variables are rounded to the nearest value. Pushed gradients are rounded
    stochastically, so that their mean is unbiased. Results change. Values that are saved, restored,
    assigned, fetched or counted stay exact, and so do variables whose name matches a shell pattern
    of ``wire_dtype_exclude`` (``"dense/*"``). ``"float32"`` switches off what the environment
    switches on. ``tensorwire.tf.stats()["wire_dtypes"]`` lists each tensor.

    With ``cluster`` (a ``tf.train.ClusterSpec``, or its argument), `device_filters` are set for the
    session of this task: it sees only the ps and itself, so another worker that is lost or has
    finished does not block it.

    Raises:
        UsageError: the cluster has no such task; `device_filters` are given, too; `wire_dtype` has
            another value.
    """
    import tensorflow as tf

    if cluster is not None:
        if "device_filters" in kwargs:
            raise UsageError(
                "give ConfigProto either cluster or device_filters: cluster sets device_filters"
            )
        kwargs["device_filters"] = device_filters(
            tf.train.ClusterSpec(cluster).as_dict(), job_name, task_index
        )
    config = tf.compat.v1.ConfigProto(**kwargs)
    choose(
        config,
        tensor_fuse=tensor_fuse,
        unique_pull=unique_pull,
        summed_push=summed_push,
        bundles=bundles,
        exact_rewrites=exact_rewrites,
        wire_dtype=wire_dtype,
        wire_dtype_exclude=wire_dtype_exclude,
    )
    return config
