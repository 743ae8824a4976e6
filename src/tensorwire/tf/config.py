"""A session's configuration with the options that GRPC++ adds."""

from __future__ import annotations

from typing import Any

from tensorwire.plugin.fusion import OPTIMIZER


def ConfigProto(tensor_fuse: bool = False, **kwargs: Any) -> Any:
    """A stock ``tf.compat.v1.ConfigProto`` made of `kwargs`.

    With ``tensor_fuse``, tensors that cross between the same two tasks at the same depth of the
    graph travel as one message, under "grpc" as well as "grpc++"; results are the same. Every task
    of the cluster must have imported ``tensorwire.tf``.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(**kwargs)
    if tensor_fuse:
        # It stands for our rewrite of the graph; a TensorFlow that does not know it goes on.
        config.graph_options.rewrite_options.custom_optimizers.add(name=OPTIMIZER)
    return config
