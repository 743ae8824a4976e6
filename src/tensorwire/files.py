"""Files that are written whole or not at all, and read with error messages for users."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tensorwire.errors import TensorwireError, UsageError


def write_whole(path: Path, text: str) -> None:
    """Writes `text` to `path` atomically: readers see the old content until the new is complete.

    A link, a pipe or a device (/dev/stdout) is not replaced: the text is written into it.

    Raises:
        TensorwireError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")
            return
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise TensorwireError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Reads a JSON file that the user has named.

    Raises:
        UsageError: the file cannot be read, or is not JSON; the message names the file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
