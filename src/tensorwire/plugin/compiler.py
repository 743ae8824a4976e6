"""Finds the C++ compiler, and runs it so that it ends with this process."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorwire.errors import TensorwireError

CANDIDATES = ("g++", "c++", "clang++")
COMPILE_TIMEOUT_S = 900.0

_INSTALL_HINT = (
    "Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
    "or run `tensorwire build` in an image that has one and keep the folder that TENSORWIRE_CACHE "
    "names"
)


@dataclass(frozen=True)
class Compiler:
    """A command and the first line of its ``--version``."""

    command: tuple[str, ...]
    version: str


class NoCompilerError(TensorwireError):
    """No C++ compiler is installed."""


@dataclass(frozen=True)
class PackageFlags:
    """The flags of an installed library, from pkg-config."""

    name: str
    version: str
    flags: tuple[str, ...]
    """Flags for the compiler and the linker."""


# The messages of GNU ld and gold, and of lld and mold. All demangle names.
_UNDEFINED = re.compile(r"undefined (?:reference to [`'](.+)'|(?:\w+ )?symbol: (.+))$")


class CompileError(Exception):
    """A compiler or its linker failed. ``output`` is all that it printed."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        super().__init__(f"{command[0]} failed")
        self.command = tuple(command)
        self.output = output

    def first_error(self) -> str:
        """The first error line of the output, or else its first line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line or "undefined reference" in line]
        return (errors or lines or ["it printed nothing"])[0]

    def undefined_symbols(self) -> list[str]:
        """The undefined symbols that the linker reported, demangled, without duplicates."""
        found = (_UNDEFINED.search(line.strip()) for line in self.output.splitlines())
        return list(dict.fromkeys(match[1] or match[2] for match in found if match))


def find_compiler() -> Compiler:
    """``$CXX`` if it is set, else the first of g++, c++, clang++ that exists.

    Raises TensorwireError that says what to install.
    """
    named = os.environ.get("CXX", "").strip()
    if named:
        command = shlex.split(named)
        if shutil.which(command[0]) is None:
            raise TensorwireError(
                f"CXX names {command[0]}, which does not exist; "
                "unset CXX or let it name a C++17 compiler"
            )
    else:
        found = next((name for name in CANDIDATES if shutil.which(name)), None)
        if found is None:
            raise NoCompilerError(
                "no C++ compiler (g++, c++ or clang++) to build the grpc++ plug-in with. "
                + _INSTALL_HINT,
                page="docs/troubleshooting.md#a-server-does-not-start",
            )
        command = [found]
    try:
        told = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise TensorwireError(f"the C++ compiler does not run: {error}") from None
    return Compiler(tuple(command), (told.stdout.splitlines() or [""])[0])


def package_flags(name: str) -> PackageFlags | None:
    """The flags to compile with a library; None if pkg-config or the library is not installed."""
    said = []
    for question in (["--modversion"], ["--cflags", "--libs"]):
        try:
            told = subprocess.run(
                ["pkg-config", *question, name],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        said.append(told.stdout.strip())
    return PackageFlags(name, said[0], tuple(shlex.split(said[1])))


def run(command: Sequence[str], folder: Path) -> None:
    """Runs a compiler in `folder`; the compiler is ended if this call is interrupted.

    Raises CompileError if it fails, TensorwireError after COMPILE_TIMEOUT_S.
    """
    # In its own session, so that the compiler driver's children can be ended with it.
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # CompileError parses the messages; what a killed compiler leaves goes with the folder.
        env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TensorwireError(
            f"compiling took over {COMPILE_TIMEOUT_S:.0f} s and was stopped: {shlex.join(command)}"
        ) from None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        raise CompileError(command, output)
