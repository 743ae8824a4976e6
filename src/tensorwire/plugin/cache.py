"""Libraries that are compiled once, on the machine that uses them, into a cache.

A finished build is a folder that is created by one rename, so it is always complete. Its name
contains a digest of everything that the result depends on: another TensorFlow, another compiler or
a changed source gives another folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tensorwire.errors import TensorwireError
from tensorwire.plugin import compiler

CACHE_VARIABLE = "TENSORWIRE_CACHE"
WAIT_FOR_OTHER_BUILD_S = 1200.0
MISSING_SHOWN = 3


def cache_folder() -> Path:
    """``$TENSORWIRE_CACHE``, or the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("tensorwire")


def digest(*parts: str | bytes) -> str:
    """A digest of `parts` in their order: 16 hexadecimal digits of SHA-256."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.hexdigest()[:16]


@dataclass(frozen=True)
class Recipe:
    """The build of a library: its command, and all dependencies except the compiler."""

    name: str
    """File name of the library."""
    what: str
    """The library's name in messages: "the grpc++ plug-in"."""
    against: str
    """The target in messages: "TensorFlow 2.21.0"."""
    key: str
    """The build's name in the cache; it differs for everything that changes the result."""
    command: Callable[[compiler.Compiler], Sequence[str]]
    """The command line that makes `name` in a folder that holds only `units`."""
    units: Mapping[str, str]
    """Source files for the command: name and text."""
    typical_s: int
    undefined_help: str = ""
    """Advice for undefined symbols, for messages."""


def ensure_built(recipe: Recipe, rebuild: bool = False) -> Path:
    """The library of `recipe`; builds it if needed.

    Any number of processes may call this at once: one builds, the others wait for it. Without a
    compiler, a build of the same source by another compiler is used. Raises TensorwireError that
    says what to do; nothing half-built is left. A library that another user could have put there
    is refused, because its code would run in this process.
    """
    library = _find_or_build(recipe, rebuild)
    for path in (library.parent.parent, library.parent, library):
        _check_owner(path)
    return library


def _check_owner(path: Path) -> None:
    about = path.stat()
    # Whoever owns this package could change what this process does anyway.
    trusted = {0, os.geteuid(), Path(__file__).stat().st_uid}
    anyone_writes = about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX
    if about.st_uid in trusted and not anyone_writes:
        return
    what = "can be written by every user" if anyone_writes else "belongs to another user"
    raise TensorwireError(
        f"{path} {what}, whose code would run in this process; let "
        f"{CACHE_VARIABLE} name a folder of your own"
        + (f", or: chmod o-w {shlex.quote(str(path))}" if anyone_writes else "")
    )


def _find_or_build(recipe: Recipe, rebuild: bool) -> Path:
    cache = cache_folder()
    try:
        cxx = compiler.find_compiler()
    except TensorwireError:
        for library in sorted(cache.glob(f"{recipe.key}-*/{recipe.name}")):
            return library
        raise
    finished = cache / f"{recipe.key}-{digest(cxx.version)}"
    library = finished / recipe.name
    if library.exists() and not rebuild:
        return library
    try:
        cache.mkdir(0o755, parents=True, exist_ok=True)
        _check_owner(cache)
        with _locked(cache / f"{finished.name}.lock", recipe.what):
            if not library.exists() or rebuild:  # another process may have built it meanwhile
                _build(recipe, cxx, finished)
    except OSError as error:
        raise TensorwireError(
            f"cannot write the plug-in's cache {cache} ({error.strerror or error}); "
            f"let {CACHE_VARIABLE} name a folder that can be written"
        ) from None
    return library


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Holds a lock, which is also released if the process is killed."""
    import filelock  # the import takes a quarter of the time of `import tensorwire.tf`

    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        _say(f"tensorwire: another process is building {what}; waiting for it\n")
        try:
            lock.acquire(timeout=WAIT_FOR_OTHER_BUILD_S)
        except filelock.Timeout:
            raise TensorwireError(
                f"another process has held {path} for {WAIT_FOR_OTHER_BUILD_S:.0f} s; "
                "end it and try again"
            ) from None
    try:
        yield
    finally:
        lock.release()


def _build(recipe: Recipe, cxx: compiler.Compiler, finished: Path) -> None:
    """Builds into `finished`, which is created atomically. The caller holds the lock."""
    work = finished.with_name(f".{finished.name}.building")
    log = finished.with_name(f"{finished.name}.log")
    shutil.rmtree(work, ignore_errors=True)  # of a build that was killed
    work.mkdir(0o755)
    began = time.monotonic()
    _say(
        f"tensorwire: building {recipe.what} for {recipe.against} "
        f"(once, about {recipe.typical_s} s) … "
    )
    try:
        for name, text in recipe.units.items():
            (work / name).write_text(text, encoding="utf-8")
        compiler.run(recipe.command(cxx), work)
        for file in work.iterdir():
            if file.name != recipe.name:
                file.unlink()
        (work / recipe.name).chmod(0o755)
        shutil.rmtree(finished, ignore_errors=True)
        work.rename(finished)
    except compiler.CompileError as error:
        _say("failed\n")
        if "No space left on device" in error.output:
            raise OSError(errno.ENOSPC, "No space left on device") from None
        log.write_text(f"{shlex.join(error.command)}\n{error.output}", encoding="utf-8")
        raise TensorwireError(_explain(recipe, cxx, error, log)) from None
    except BaseException:
        _say("stopped\n")
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    log.unlink(missing_ok=True)
    _say(f"done in {time.monotonic() - began:.0f} s\n")


def _explain(
    recipe: Recipe, cxx: compiler.Compiler, error: compiler.CompileError, log: Path
) -> str:
    """The error in one line, for the user."""
    missing = error.undefined_symbols()
    if not missing:
        return (
            f"{recipe.what} does not compile for {recipe.against} "
            f"with {cxx.version}: {error.first_error()} (all of it: {log})"
        )
    named = ", ".join(missing[:MISSING_SHOWN])
    more = len(missing) - MISSING_SHOWN
    named += f" and {more} more" if more > 0 else ""
    advice = f"; {recipe.undefined_help}" if recipe.undefined_help else ""
    return (
        f"{recipe.what} does not link with {recipe.against}, "
        f"which lacks {named} (all of it: {log}){advice}"
    )


def _say(text: str) -> None:
    """Prints progress to stderr, so that it does not mix with a script's output."""
    sys.stderr.write(text)
    sys.stderr.flush()
