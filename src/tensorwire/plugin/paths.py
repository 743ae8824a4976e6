"""Where the package keeps its native parts, and where the user's cache is."""

from __future__ import annotations

import os
from importlib import util
from pathlib import Path

import platformdirs

from tensorwire.errors import TensorwireError

CACHE_VARIABLE = "TENSORWIRE_CACHE"


def native_folder() -> Path:
    """The package's ``_native``: ``lib/``, ``include/``, ``plugin/`` and ``raw/``."""
    # Beside the binding and not beside this file: an editable install keeps the two apart.
    spec = util.find_spec("tensorwire._wire")
    if spec is None or spec.origin is None:
        raise TensorwireError("tensorwire is installed without its native parts: install it again")
    return Path(spec.origin).parent / "_native"


def engine_library() -> Path:
    return native_folder() / "lib" / "libtensorwire.so"


def raw_library() -> Path:
    """Raw RPC over the engine, and raw TCP (native/raw)."""
    return native_folder() / "lib" / "libtensorwire_raw.so"


def cache_folder() -> Path:
    """``$TENSORWIRE_CACHE``, or the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    return (
        Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("tensorwire")
    )
