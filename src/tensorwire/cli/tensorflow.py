"""Use of TensorFlow in the process of a command."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.placement.plan import Model

_PYTHON = re.compile(r"python[0-9.]*$")


def quiet_tensorflow() -> None:
    """Silences TensorFlow's log. To be called before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # TensorFlow 2.21 prints a notice about oneDNN at every log level. Nothing that a command
    # computes is faster with oneDNN.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def check_script(script: Path) -> None:
    """Refuses what Python could not run as a script, before it says so in its own words.

    Raises:
        UsageError: there is no such file, or it is a folder without a program.
    """
    if script.is_dir() and not (script / "__main__.py").exists():
        raise UsageError(f"{script} is a folder: name the script in it")
    if not script.exists():
        leave_out = ": leave it out, Python runs the script" if _PYTHON.match(script.name) else ""
        raise UsageError(f"there is no script {script}{leave_out}")


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
