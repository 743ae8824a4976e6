"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from tensorwire.errors import TensorwireError


def write_whole(path: Path, text: str) -> None:
    """Writes `text` to `path`; who reads it meanwhile sees what was there before.

    Raises:
        TensorwireError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise TensorwireError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
