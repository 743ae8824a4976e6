"""Graphs that the user names, read by TensorFlow."""

from __future__ import annotations

from pathlib import Path

from tensorwire.cli.quiet import quiet_tensorflow
from tensorwire.errors import TensorwireError
from tensorwire.placement.plan import Model


def model_of_file(path: Path) -> Model:
    """As `placement.graphs` has it, with TensorFlow's own log silent.

    Raises:
        TensorwireError: it is no graph, or there is no TensorFlow.
    """
    quiet_tensorflow()
    from tensorwire.placement import graphs

    try:
        return graphs.model_of_file(path)
    except ImportError as error:
        raise TensorwireError(f"a graph is read by TensorFlow: {error}") from error
