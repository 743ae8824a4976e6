"""Measures reading of training data without a job: MB/s, and the time to open a file."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.errors import TensorwireError

_CHUNK_BYTES = 4 << 20
_MOST_FILES = 1000


@dataclass(frozen=True)
class InputRate:
    """The rate that one reader reached, reading one file after the other."""

    files: int
    read_bytes: int
    seconds: float
    open_ms: float
    """Median time until the first byte of a file is read."""

    @property
    def mb_per_s(self) -> float:
        return self.read_bytes / 1e6 / self.seconds


def probe(path: str, seconds: float) -> InputRate:
    """Reads the files at `path` through ``tf.io.gfile`` for at most about `seconds`.

    Args:
        path: a file, a folder, or a pattern that this TensorFlow can read ("hdfs://…" if it
            supports that).

    Raises:
        TensorwireError: TensorFlow is not installed, or there is nothing to read.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise TensorwireError(f"data is read through TensorFlow: {error}") from error
    try:
        return _read(tf, _files(tf, path), seconds)
    except tf.errors.OpError as error:
        raise TensorwireError(f"cannot read {path}: {error.message}") from error


def _files(tf: Any, path: str) -> Sequence[str]:
    gfile = tf.io.gfile
    if gfile.isdir(path):
        found: list[str] = []
        for folder, _, names in gfile.walk(path):
            found += [gfile.join(folder, name) for name in sorted(names)]
            if len(found) >= _MOST_FILES:
                break
    else:
        found = sorted(gfile.glob(path))
    if not found:
        raise TensorwireError(f"there is no file at {path}")
    return found[:_MOST_FILES]


def _read(tf: Any, files: Sequence[str], seconds: float) -> InputRate:
    opened_ms: list[float] = []
    read_bytes, used_s = 0, 0.0
    for name in files:
        _forget(name)
        started = time.monotonic()
        with tf.io.gfile.GFile(name, "rb") as file:
            read_bytes += len(file.read(1))  # the file is opened now
            opened_ms.append((time.monotonic() - started) * 1e3)
            while chunk := file.read(_CHUNK_BYTES):
                read_bytes += len(chunk)
                if used_s + time.monotonic() - started > seconds:
                    break
        used_s += time.monotonic() - started
        if used_s > seconds:
            break
    if not read_bytes:
        raise TensorwireError(f"{files[0]} and the other files at this path are empty")
    return InputRate(len(opened_ms), read_bytes, used_s, statistics.median(opened_ms))


def _forget(name: str) -> None:
    """Drops a local file from the page cache, so that storage is measured and not memory."""
    with contextlib.suppress(OSError):
        descriptor = os.open(name.removeprefix("file://"), os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
