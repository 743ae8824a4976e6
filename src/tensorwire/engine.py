"""The engine's library: its place in the package, and the calls into it (c_api.h)."""

from __future__ import annotations

import ctypes
import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorwire
from tensorwire.errors import TensorwireError, UsageError

_LIBRARY = Path("lib", "libtensorwire.so")

_Endpoint = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


def native_folder() -> Path:
    """The package's ``_native``: ``lib/``, ``include/``, ``plugin/`` and ``raw/``."""
    # Not next to this file, because an editable install has them in different folders.
    for package in tensorwire.__path__:
        folder = Path(package, "_native")
        if (folder / _LIBRARY).exists():
            return folder
    raise TensorwireError("tensorwire is installed without its native parts: install it again")


def engine_library() -> Path:
    return native_folder() / _LIBRARY


class Library:
    """A library whose functions return null or an error text, or a number."""

    def __init__(self, path: Path, prefix: str = "tensorwire_") -> None:
        self._prefix = prefix
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise TensorwireError(
                f"cannot load {path}: {error}; install tensorwire again"
            ) from None

    def number(self, name: str, *arguments: Any) -> int:
        """Calls a function that returns an int."""
        return int(self._library[f"{self._prefix}{name}"](*map(_for_c, arguments)))

    def words(self, name: str, *arguments: Any) -> str | None:
        """Calls a function that returns text; an argument is what Python makes of it."""
        function = self._library[f"{self._prefix}{name}"]
        function.restype = ctypes.c_char_p
        said: bytes | None = function(*map(_for_c, arguments))
        return None if said is None else said.decode(errors="replace")

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns null or an error, which becomes a TensorwireError."""
        if (error := self.words(name, *arguments)) is not None:
            raise TensorwireError(error)


def _for_c(argument: Any) -> Any:
    """Text, numbers and arrays of numpy as C takes them."""
    if isinstance(argument, str):
        return os.fsencode(argument)
    if isinstance(argument, int):
        return ctypes.c_int64(argument)  # an int of C takes the lower half of it
    if isinstance(argument, float):
        return ctypes.c_double(argument)
    return getattr(argument, "ctypes", argument)


def data_port(grpc_port: int) -> int:
    """The data port of a gRPC port, if no `.endpoint_map` names another one.

    It is `grpc_port` + 20000; above 65535 it wraps to 1024.

    Raises:
        UsageError: `grpc_port` is not in 1..65535.
    """
    if not 1 <= grpc_port <= 65535:
        raise UsageError(f"a port is 1..65535, not {grpc_port}")
    return _engine().number("data_port", grpc_port)


def second_data_port(grpc_port: int) -> int | None:
    """The port that a task uses instead if another process occupies its data port.

    None if Linux does not give `data_port` to outgoing connections.

    Raises:
        UsageError: `grpc_port` is not in 1..65535.
    """
    data_port(grpc_port)
    return _engine().number("second_data_port", grpc_port) or None


def parse_endpoint_map(text: str, filename: str) -> dict[str, str]:
    """The data address of each gRPC address, in the file's order.

    Raises:
        UsageError: a line is wrong; the message names file and line, and shows the format.
    """
    found: dict[str, str] = {}

    def add(_: object, grpc_address: bytes, data_address: bytes) -> None:
        found[os.fsdecode(grpc_address)] = os.fsdecode(data_address)

    data = os.fsencode(text)
    arguments = (data, len(data), filename, _Endpoint(add), None)
    _check("parse_endpoint_map", *arguments, page="docs/settings.md#ports")
    return found


@dataclass(frozen=True)
class Reached:
    """The result of greeting a task as one of its peers."""

    version: str
    """The task's version of tensorwire; empty if the task does not report it."""
    round_trip_s: float
    clock_ahead_s: float
    """How far the task's clock is ahead of this host's, +- half of the round trip."""
    bytes_per_s: float
    """Rate to the task over one connection; 0 if not measured."""


def reach(
    address: str, second_port: int | None, peer: str, timeout_s: float, rate_s: float = 0.0
) -> Reached:
    """Greets a task as its peers do, with the job token and TLS of the environment.

    Args:
        address: address of its data port.
        second_port: see `second_data_port`.
        peer: the task's name, "/job:ps/replica:0/task:0".
        rate_s: seconds of sending data to measure the rate; 0: not measured.

    Raises:
        UsageError: the task cannot be reached, or refuses; the message says why.
    """
    version = ctypes.create_string_buffer(64)
    round_trip_us, clock_ahead_us = ctypes.c_int64(), ctypes.c_int64()
    bytes_per_s = ctypes.c_double()
    _check(
        "reach",
        *(address, second_port or 0, peer, math.ceil(1e3 * timeout_s), math.ceil(1e3 * rate_s)),
        *(version, len(version), ctypes.byref(round_trip_us), ctypes.byref(clock_ahead_us)),
        ctypes.byref(bytes_per_s),
    )
    return Reached(
        os.fsdecode(version.value),
        round_trip_us.value * 1e-6,
        clock_ahead_us.value * 1e-6,
        bytes_per_s.value,
    )


def check_security() -> None:
    """Checks the environment's settings for the job token and TLS.

    Raises:
        UsageError: they are invalid; the message says why.
    """
    _check("check_security", page="SECURITY.md")


def _check(name: str, *arguments: Any, page: str = "") -> None:
    """Calls a function of the engine that returns null or an error of the user."""
    if (error := _engine().words(name, *arguments)) is not None:
        raise UsageError(error, page=page)


@functools.cache
def _engine() -> Library:
    return Library(engine_library())
