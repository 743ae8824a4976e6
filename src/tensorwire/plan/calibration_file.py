"""Files of calibrations: the user's own, kept by `plan calibrate`, and the one shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import platformdirs

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.files import read_json, write_whole
from tensorwire.plan.costs import Calibration

SHIPPED = Path(__file__).with_name("shipped.json")
_LINE = 400


def own_path() -> Path:
    """The user's own; it need not be there."""
    return platformdirs.user_data_path("tensorwire") / "calibration.json"


def keep(calibration: Calibration) -> Path:
    """Makes it the user's own, in place of the one before."""
    path = own_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TensorwireError(f"cannot make {path.parent}: {error.strerror}") from error
    write_whole(path, text(calibration.to_document()) + "\n")
    return path


def text(value: Any, indent: str = "") -> str:
    """JSON with a line for each thing that fits into one: hundreds of variables are for readers,
    too."""
    line, inner = json.dumps(value), indent + " "
    if len(line) <= _LINE or not isinstance(value, dict | list | tuple):
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {text(each, inner)}" for name, each in value.items()]
    else:
        parts = [text(each, inner) for each in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return first + ",".join(f"\n{inner}{part}" for part in parts) + f"\n{indent}{last}"


def read(path: Path) -> Calibration:
    """The calibration in a file.

    Raises:
        UsageError: the file does not contain a calibration.
    """
    document = read_json(path)
    try:
        return Calibration.from_document(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
