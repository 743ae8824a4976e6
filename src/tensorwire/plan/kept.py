"""Where calibrations are: the user's own, kept by `plan calibrate`, and the one shipped."""

from __future__ import annotations

import json
from pathlib import Path

import platformdirs

from tensorwire.errors import TensorwireError
from tensorwire.files import write_whole
from tensorwire.plan.costs import Calibration

SHIPPED = Path(__file__).with_name("shipped.json")


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
    write_whole(path, json.dumps(calibration.to_document(), indent=1) + "\n")
    return path


def read(path: Path) -> Calibration:
    """The calibration in a file.

    Raises:
        TensorwireError: there is none.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TensorwireError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise TensorwireError(f"{path} is not JSON: {error}") from error
    try:
        return Calibration.from_document(document)
    except TensorwireError as error:
        raise TensorwireError(f"{path}: {error}") from error
