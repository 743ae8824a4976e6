"""What the tasks of the experiments share: how they start TensorFlow's server, and how they end."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorwire.errors import TensorwireError
from tensorwire.lab.channel import TaskEnd


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


def run(main: Callable[[TaskEnd], None]) -> None:
    """Runs a task as this process, whose starter is told {"error": text} of what ends it."""
    channel = TaskEnd()
    try:
        main(channel)
    except TensorwireError as failure:
        channel.send({"error": str(failure)})
        sys.exit(1)
    except Exception as failure:
        traceback.print_exc()
        # TensorFlow rules a line of "=" above the errors of several tasks.
        lines = [line.strip() for line in str(failure).splitlines() if line.strip(" =")]
        channel.send({"error": ": ".join([type(failure).__name__, *lines[:1]])})
        sys.exit(1)
