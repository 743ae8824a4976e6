"""Cleans up after an owner that was killed: a cleanup process, a lock, and a sweep of leftovers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorwire.bench.lab import cleanup_process

_DISMISSAL_S = 3.0


class CleanupProcess:
    """A process that cleans up if this process dies before it calls `dismiss`."""

    def __init__(
        self,
        *,
        token: str | None = None,
        directory: Path | None = None,
        cgroups: Sequence[Path] = (),
    ) -> None:
        """Names what to remove: processes that carry a token, a directory, control groups."""
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
        """Ends the cleanup process, because the owner has cleaned up."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.write(b".")
            stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DISMISSAL_S)


PREFIX = "tensorwire-"
_CLAIM = "running"


class Claim:
    """A lock that shows that a directory's owner is alive, until `release` or the owner's death."""

    def __init__(self, directory: Path, token: str) -> None:
        self._path = directory / _CLAIM
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # Locked before the token is written: `sweep` ignores a file without a token.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.write(self._descriptor, token.encode())

    def release(self) -> None:
        """Ends the claim. If the directory remains, its logs are needed and it is not swept."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def sweep(parent: Path) -> None:
    """Ends the processes of clusters whose owner has died, and removes their directories."""
    for path in parent.glob(f"{PREFIX}*/{_CLAIM}"):
        with contextlib.suppress(OSError), path.open("rb") as file:  # removed, or another user's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if token := file.read().decode():
                cleanup_process.kill_all(token)
                shutil.rmtree(path.parent, ignore_errors=True)
