"""A session's configuration with the options that GRPC++ adds."""

from __future__ import annotations

import warnings
from typing import Any

_told = False


def ConfigProto(tensor_fuse: bool = False, **kwargs: Any) -> Any:
    """A stock ``tf.compat.v1.ConfigProto`` made of `kwargs`.

    ``tensor_fuse`` asks that tensors which cross between two devices travel as one. This version
    does not do that yet: it says so once, and the tensors travel singly, with the same result.
    """
    import tensorflow as tf

    if tensor_fuse:
        warn_no_fusion()
    return tf.compat.v1.ConfigProto(**kwargs)


def warn_no_fusion() -> None:
    """Says, once a process, that ``tensor_fuse`` has no effect."""
    global _told  # noqa: PLW0603
    if not _told:
        _told = True
        warnings.warn(
            "tensor_fuse=True has no effect yet: this version of tensorwire sends every tensor "
            "singly; results are the same",
            stacklevel=3,
        )
