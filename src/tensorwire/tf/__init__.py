"""GRPC++ for the TensorFlow that is installed: importing this registers protocol "grpc++".

    import tensorwire.tf
    server = tf.compat.v1.train.Server(cluster, job_name, task_index, protocol="grpc++")

The first import on a machine compiles the plug-in, once (see ``tensorwire build``).
"""

from tensorwire.plugin.loader import load, stats
from tensorwire.tf.config import ConfigProto

__all__ = ["ConfigProto", "load", "stats"]

load()
