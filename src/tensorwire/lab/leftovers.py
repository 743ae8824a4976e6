"""Directories of clusters whose owner died, and whose guard died with it.

Each cluster's directory has a file that its owner keeps locked; the kernel drops the lock with the
process. The file has the token of the cluster's processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from tensorwire.lab import cleanup_process

PREFIX = "tensorwire-"
_CLAIM = "running"


class Claim:
    """Says that the owner of a cluster's directory is alive, until `release` or its death."""

    def __init__(self, directory: Path, token: str) -> None:
        self._path = directory / _CLAIM
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # Locked before there is a token: who finds a file without one lets it be.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.write(self._descriptor, token.encode())

    def release(self) -> None:
        """The directory is no leftover, even if it stays: its logs are wanted."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def sweep(parent: Path) -> None:
    """Ends the processes of clusters without an owner, and removes their directories."""
    for path in parent.glob(f"{PREFIX}*/{_CLAIM}"):
        with contextlib.suppress(OSError), path.open("rb") as file:  # it is gone, or another user's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if token := file.read().decode():
                cleanup_process.kill_all(token)
                shutil.rmtree(path.parent, ignore_errors=True)
