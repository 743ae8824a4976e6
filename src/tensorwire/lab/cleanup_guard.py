"""The owner's side of the guard process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorwire.lab import cleanup_process

_DISMISSAL_S = 3.0


class CleanupGuard:
    """A process that cleans up when this one dies before it has called `dismiss`."""

    def __init__(
        self,
        *,
        token: str | None = None,
        directory: Path | None = None,
        cgroups: Sequence[Path] = (),
    ) -> None:
        """Names what goes: processes that carry a token, a directory, control groups."""
        legacy = {
            "token": token,
            "directory": None if directory is None else str(directory),
            "cgroups": [str(path) for path in cgroups],
        }
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", cleanup_process.__file__, json.dumps(legacy)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """The owner has cleaned up by itself."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.write(b".")
            stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DISMISSAL_S)
