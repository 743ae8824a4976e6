"""How the tasks of one user on one host find each other: a file for each, in a folder.

The folder is ``$TENSORWIRE_RUNTIME``, or ``tensorwire`` in ``$XDG_RUNTIME_DIR``, or else
``tensorwire-UID`` in the folder for temporary files. Only its owner may read or write it.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from tensorwire.errors import TensorwireError

FOLDER_VARIABLE = "TENSORWIRE_RUNTIME"


@dataclass(frozen=True)
class Announcement:
    """A process of this user that serves its figures."""

    pid: int
    started_s: float
    """When the process started: a number may be another process's by now."""
    address: str
    """ "host:port" or "unix:PATH"."""


def folder() -> Path:
    """Where announcements are; it need not be there."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "tensorwire"
    return Path(tempfile.gettempdir()) / f"tensorwire-{os.getuid()}"


def announce(address: str) -> None:
    """Lets this user's other processes know where this one serves its figures, until it ends.

    Raises:
        OSError: the folder cannot be made or written.
        TensorwireError: it belongs to somebody else.
    """
    where = folder()
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(where)
    pid = os.getpid()
    record = {"pid": pid, "started_s": psutil.Process(pid).create_time(), "address": address}
    file = where / f"{pid}.json"
    partial = where / f".{pid}.json"  # readers see all of it or nothing
    partial.write_text(json.dumps(record), encoding="utf-8")
    partial.replace(file)

    def withdraw() -> None:
        if os.getpid() == pid:  # not in a child that has inherited this
            file.unlink(missing_ok=True)

    atexit.register(withdraw)


def discover() -> list[Announcement]:
    """The processes that announced themselves and still run, oldest first.

    Raises:
        TensorwireError: the folder belongs to somebody else.
    """
    where = folder()
    if not where.is_dir():
        return []
    _check_owner(where)
    found = []
    for file in where.glob("[0-9]*.json"):
        try:
            record = Announcement(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # it went away, or another version's
        if _runs(record):
            found.append(record)
        else:
            file.unlink(missing_ok=True)  # its process was killed
    return sorted(found, key=lambda record: (record.started_s, record.pid))


def _check_owner(where: Path) -> None:
    if where.stat().st_uid != os.getuid():
        raise TensorwireError(
            f"{where}, where tasks announce themselves, belongs to another user; "
            f"let {FOLDER_VARIABLE} name a folder of your own"
        )


def _runs(record: Announcement) -> bool:
    try:
        return abs(psutil.Process(record.pid).create_time() - record.started_s) < 1.0
    except psutil.NoSuchProcess:
        return False
