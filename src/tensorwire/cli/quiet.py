"""TensorFlow in the process of a command, where it trains nothing."""

from __future__ import annotations

import os


def quiet_tensorflow() -> None:
    """Before it is imported: what it logs while it starts is not what was asked for."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Of this TensorFlow 2.21 tells whatever the level; nothing is computed here that is faster so.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
