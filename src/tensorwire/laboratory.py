"""The door to the laboratory, `tensorwire.bench`: the rest of the package imports nothing of it."""

from __future__ import annotations

import importlib
from typing import Any

from tensorwire.errors import TensorwireError


def laboratory(module: str) -> Any:
    """The module `tensorwire.bench.MODULE`.

    Raises:
        TensorwireError: a library that it needs is not installed.
    """
    try:
        return importlib.import_module(f"tensorwire.bench.{module}")
    except ModuleNotFoundError as error:
        raise TensorwireError(
            f"measuring needs a library that is missing ({error}): pip install 'tensorwire[bench]'"
        ) from error
