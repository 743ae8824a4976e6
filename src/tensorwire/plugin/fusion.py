"""The settings by which a session and a process ask for tensor fusion (fuse_pass.h reads them)."""

from __future__ import annotations

import os
from typing import Any

OPTIMIZER = "tensorwire_fuse"
"""The name of a custom optimizer in a session's RewriterConfig."""

VARIABLE = "TENSORWIRE_TENSOR_FUSE"
"""Set to 1: every session and function of the process fuses."""


def is_asked_for(config: Any) -> bool:
    """True if sessions with this ConfigProto, or None, fuse in this process."""
    if os.environ.get(VARIABLE, "") not in ("", "0"):
        return True
    if config is None:
        return False
    custom = config.graph_options.rewrite_options.custom_optimizers
    return any(optimizer.name == OPTIMIZER for optimizer in custom)
