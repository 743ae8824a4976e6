"""The C++ compiler: finding it, and running many compilations that end together."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tensorwire.errors import TensorwireError

CANDIDATES = ("g++", "c++", "clang++")
COMPILE_TIMEOUT_S = 900.0

# A compilation that includes TensorFlow's headers takes about 1 GB at its peak.
_COMPILE_BYTES = 3 << 29

_INSTALL_HINT = (
    "Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
    "Alpine: apk add g++; or run `tensorwire build` in an image that has one and keep the folder "
    "that TENSORWIRE_CACHE names"
)


@dataclass(frozen=True)
class Compiler:
    """A command and the first line of its ``--version``."""

    command: tuple[str, ...]
    version: str


class CompileError(Exception):
    """A compiler said no. ``output`` is all that it said."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        super().__init__(f"{command[0]} failed")
        self.command = tuple(command)
        self.output = output

    def first_error(self) -> str:
        """The first line of the output that is an error, or else its first line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line or "undefined reference" in line]
        return (errors or lines or ["it said nothing"])[0]


def find_compiler() -> Compiler:
    """``$CXX`` where it is set, else the first of g++, c++, clang++.

    Raises TensorwireError that says what to install.
    """
    named = os.environ.get("CXX", "").strip()
    if named:
        command = shlex.split(named)
        if shutil.which(command[0]) is None:
            raise TensorwireError(
                f"CXX names {command[0]}, which is not there; "
                "unset CXX or let it name a C++17 compiler"
            )
    else:
        found = next((name for name in CANDIDATES if shutil.which(name)), None)
        if found is None:
            raise TensorwireError(
                "no C++ compiler (g++, c++ or clang++) to build the grpc++ plug-in with. "
                + _INSTALL_HINT
            )
        command = [found]
    try:
        told = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise TensorwireError(f"the C++ compiler does not run: {error}") from None
    return Compiler(tuple(command), (told.stdout.splitlines() or [""])[0])


def parallel_jobs() -> int:
    """How many compilations to run at once: one a core, as far as memory goes."""
    by_memory = int(psutil.virtual_memory().available) // _COMPILE_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), by_memory))


def run_all(commands: Sequence[Sequence[str]], folder: Path) -> None:
    """Runs the commands side by side in `folder`; when one fails or is interrupted, ends all.

    Raises CompileError for the first that failed, TensorwireError where time runs out.
    """
    running = _Running(folder)
    pool = ThreadPoolExecutor(max_workers=parallel_jobs(), thread_name_prefix="tensorwire-compile")
    try:
        futures = [pool.submit(running.run, command) for command in commands]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
    finally:
        running.stop()
        pool.shutdown(cancel_futures=True)


class _Running:
    """The compilations that run now, so that they can be ended from another thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, command: Sequence[str]) -> None:
        deadline = time.monotonic() + COMPILE_TIMEOUT_S
        with self._lock:
            if self._stopped:
                return
            # A session of its own, because the driver's children must end with the driver.
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._processes.add(process)
        try:
            output, _ = process.communicate(timeout=deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            _kill(process)
            raise TensorwireError(
                f"compiling took over {COMPILE_TIMEOUT_S:.0f} s and was stopped: "
                + shlex.join(command)
            ) from None
        finally:
            with self._lock:
                self._processes.discard(process)
        if process.returncode != 0 and not self._stopped:
            raise CompileError(command, output)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
