"""TensorFlow's server, as the tasks of the experiments start it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def start(
    spec: Mapping[str, Sequence[str]],
    job: str,
    index: int,
    protocol: str,
    tensor_fuse: bool = False,
) -> tuple[Any, Any]:
    """TensorFlow itself, and a `tf.compat.v1.train.Server` that runs."""
    import tensorflow as tf

    if protocol != "grpc" or tensor_fuse:
        import tensorwire.tf  # noqa: F401, registers the protocol
    server = tf.compat.v1.train.Server(
        tf.train.ClusterSpec(dict(spec)), job_name=job, task_index=index, protocol=protocol
    )
    return tf, server
