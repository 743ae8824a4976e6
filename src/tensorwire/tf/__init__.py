"""GRPC++ for the TensorFlow that is installed: importing this registers protocol "grpc++".

    import tensorwire.tf
    server = tf.compat.v1.train.Server(cluster, job_name, task_index, protocol="grpc++")

Where the package carries no plug-in for this TensorFlow, the first import compiles one (see
``tensorwire build``).
"""

from importlib import import_module
from typing import Any

from tensorwire.plugin.loader import load, stats
from tensorwire.tf.config import ConfigProto

# Loaded when they are used: callbacks want Keras, which is slow to start.
_LAZY = {
    "FiguresHook": "hooks",
    "StepBreakdownHook": "hooks",
    "FiguresCallback": "callbacks",
    "StepBreakdownCallback": "callbacks",
    "StepTimer": "step_trace",
}

__all__ = ["ConfigProto", "load", "stats", *_LAZY]  # noqa: PLE0604 - they are names


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"tensorwire.tf.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'tensorwire.tf' has no attribute {name!r}")


load()
