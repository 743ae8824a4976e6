"""GRPC++ for the installed TensorFlow: importing this module registers protocol "grpc++".

    import tensorwire.tf
    server = tf.compat.v1.train.Server(cluster, job_name, task_index, protocol="grpc++")

If the package contains no plug-in for this TensorFlow, the first import compiles one (see
``tensorwire build``).

The import changes this process:

- The plug-in is loaded. It adds a server factory, operations, and passes over graphs, which do
  nothing unless a session or ``TENSORWIRE_REWRITES`` asks for a rewrite.
- ``tf.compat.v1.ConfigProto`` also takes the arguments of `ConfigProto` that name rewrites.
- Ctrl-C ends ``Server.join``, which then waits in another thread.
- ``Session.partial_run_setup`` adds an operation that does nothing to the graph, so that partial
  runs are not rewritten.
- An estimator accepts "grpc++" as the protocol of its RunConfig.
- Environment variables with old names get their present names, with a warning.
- A thread serves the metrics once the process is a task, if ``TENSORWIRE_METRICS`` names a place.

``load(patches=False)`` takes the changes of ConfigProto, Server and Session back. Then give only
those sessions rewrites that make no partial runs.
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
    "WorkQueue": "work_queue",
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
