"""Use of TensorFlow in the process of a command."""

from __future__ import annotations

import os
from pathlib import Path

from tensorwire.errors import TensorwireError
from tensorwire.placement.plan import Model


def quiet_tensorflow() -> None:
    """Silences TensorFlow's log. To be called before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # TensorFlow 2.21 prints a notice about oneDNN at every log level. Nothing that a command
    # computes is faster with oneDNN.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def model_of_file(path: Path) -> Model:
    """Reads a model by `placement.graphs`, with TensorFlow's own log silenced.

    Raises: TensorwireError: the file holds no graph, or TensorFlow is not installed.
    """
    quiet_tensorflow()
    from tensorwire.placement import graphs

    try:
        return graphs.model_of_file(path)
    except ImportError as error:
        raise TensorwireError(f"a graph is read by TensorFlow: {error}") from error
