"""GRPC++ for the installed TensorFlow: importing this module registers protocol "grpc++".

    import tensorwire.tf
    server = tf.compat.v1.train.Server(cluster, job_name, task_index, protocol="grpc++")

If the package contains no plug-in for this TensorFlow, the first import compiles one (see
``tensorwire build``).
"""

from importlib import import_module
from typing import Any

from tensorwire.plugin.loader import load, stats
from tensorwire.tf.config import ConfigProto

# Loaded on first use: callbacks need Keras, which is slow to import.
_LAZY = {
    "FiguresHook": "hooks",
    "StepBreakdownHook": "hooks",
    "Saver": "saver",
    "train_with_restarts": "restarts",
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
