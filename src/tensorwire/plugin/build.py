"""Compiles the plug-in for the installed TensorFlow, once, into a cache.

A finished build is a folder that appears by one rename, so that whoever finds it finds all of it.
Its name carries a digest of everything that the result depends on: another TensorFlow, another
compiler or a changed source is another folder.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from tensorwire import __version__
from tensorwire.errors import TensorwireError
from tensorwire.plugin import compiler, paths
from tensorwire.plugin.tensorflow_install import LIBRARIES, TensorFlowInstall, find_tensorflow

PLUGIN_NAME = "tensorwire_plugin.so"
WAIT_FOR_OTHER_BUILD_S = 1200.0
TYPICAL_S = 20

# NDEBUG: the wheels are built with it, and without it some of TensorFlow's classes have another
# layout. Symbols stay visible, as in every library of custom operations: what TensorFlow's inline
# functions keep in static variables must be one thing for TensorFlow and for the plug-in.
_FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-pthread", "-w")
# A default of some systems leaves libraries out, which changes the order of what is left.
_LINK_FLAGS = ("-shared", "-pthread", "-Wl,--no-as-needed")
_UNIT = "plugin.cc"
_OBJECT = "plugin.o"


@dataclass(frozen=True)
class PluginSource:
    """What is compiled, and against which headers and engine of ours."""

    folder: Path
    include: Path
    engine: Path
    name: str = PLUGIN_NAME
    """Of the library."""
    what: str = "the grpc++ plug-in"
    """For messages."""
    plugin: Path | None = None
    """The built plug-in, for a library that is linked with it."""

    def units(self) -> list[Path]:
        """The files to compile, together: what they name in anonymous namespaces must differ."""
        return sorted(self.folder.glob("*.cc"))

    def files(self) -> list[Path]:
        """Every file whose change asks for another build."""
        headers = (*self.folder.glob("*.h"), *self.include.rglob("*.h"))
        return self.units() + sorted(headers)


def packaged_source() -> PluginSource:
    """The source that came with this package."""
    native = paths.native_folder()
    return PluginSource(native / "plugin", native / "include", paths.engine_library())


def bench_source(plugin: Path) -> PluginSource:
    """The native part of `bench serve`, for the plug-in that was built."""
    packaged = packaged_source()
    return PluginSource(
        packaged.folder / "bench",
        packaged.include,
        packaged.engine,
        name="tensorwire_bench.so",
        what="the native part of bench serve",
        plugin=plugin,
    )


def ensure_built(
    tensorflow: TensorFlowInstall | None = None,
    source: PluginSource | None = None,
    rebuild: bool = False,
) -> Path:
    """The library of `source` (the plug-in) for `tensorflow` (the installed one), built if need be.

    Any number of processes may call this at once: one builds, the others wait for it. Where there
    is no compiler, what another one built from the same source is as good.
    Raises TensorwireError that says what to do; nothing half-built is left.
    """
    tensorflow = tensorflow or find_tensorflow()
    source = source or packaged_source()
    if not source.units():
        raise TensorwireError(f"no plug-in source in {source.folder}: install tensorwire again")
    cache = paths.cache_folder()
    name = f"tf-{tensorflow.version}-{_source_digest(tensorflow, source)}"
    try:
        cxx = compiler.find_compiler()
    except TensorwireError:
        for library in sorted(cache.glob(f"{name}-*/{source.name}")):
            return library
        raise
    finished = cache / f"{name}-{_digest(cxx.version)}"
    library = finished / source.name
    if library.exists() and not rebuild:
        return library
    with _writing_to(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{finished.name}.lock", source.what):
            if not library.exists() or rebuild:  # another process may have built it meanwhile
                _build(tensorflow, source, cxx, finished)
    return library


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]


def _source_digest(tensorflow: TensorFlowInstall, source: PluginSource) -> str:
    """Of all that a build depends on but the compiler."""
    parts: list[str | bytes] = [__version__, source.name, tensorflow.fingerprint]
    parts += [*_FLAGS, *_LINK_FLAGS]
    parts += tensorflow.compile_flags
    if source.plugin is not None:
        parts.append(source.plugin.parent.name)  # which has the digest of all that it was made of
    for file in source.files():
        parts += [file.name, file.read_bytes()]
    return _digest(*parts)


@contextmanager
def _writing_to(cache: Path) -> Iterator[None]:
    """Turns what the file system refuses into an error that names the way out."""
    try:
        yield
    except OSError as error:
        raise TensorwireError(
            f"cannot write the plug-in's cache {cache} ({error.strerror or error}); "
            f"let {paths.CACHE_VARIABLE} name a folder that can be written"
        ) from None


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Holds a lock that ends with the process that holds it, however that ends."""
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


def _build(
    tensorflow: TensorFlowInstall, source: PluginSource, cxx: compiler.Compiler, finished: Path
) -> None:
    """Builds into `finished`, which appears whole or not at all. The caller holds the lock."""
    work = finished.with_name(f".{finished.name}.building")
    log = finished.with_name(f"{finished.name}.log")
    shutil.rmtree(work, ignore_errors=True)  # of a build that was killed
    work.mkdir()
    began = time.monotonic()
    _say(
        f"tensorwire: building {source.what} for TensorFlow {tensorflow.version} "
        f"(once, about {TYPICAL_S} s) … "
    )
    try:
        _write_unit(work / _UNIT, source)
        compiler.run(_compile_command(tensorflow, source, cxx), work)
        compiler.run(_link_command(tensorflow, source, cxx), work)
        for name in (_UNIT, _OBJECT):
            (work / name).unlink()
        _write_record(work / "build.json", tensorflow, cxx)
        shutil.rmtree(finished, ignore_errors=True)
        work.rename(finished)
    except compiler.CompileError as error:
        _say("failed\n")
        log.write_text(f"{shlex.join(error.command)}\n{error.output}", encoding="utf-8")
        raise TensorwireError(
            f"{source.what} does not compile for TensorFlow {tensorflow.version} "
            f"with {cxx.version}: {error.first_error()} (all of it: {log})"
        ) from None
    except BaseException:
        _say("stopped\n")
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    log.unlink(missing_ok=True)
    _say(f"done in {time.monotonic() - began:.0f} s\n")


def _write_unit(path: Path, source: PluginSource) -> None:
    """All sources as one: nearly all of a compilation is TensorFlow's headers, read once so.

    Measured with 8 source files: 14 s of CPU time in place of 80 s.
    """
    lines = [f'#include "{unit.absolute()}"\n' for unit in source.units()]
    path.write_text("".join(lines), encoding="utf-8")


def _compile_command(
    tensorflow: TensorFlowInstall, source: PluginSource, cxx: compiler.Compiler
) -> list[str]:
    return [
        *cxx.command,
        *_standard_first(tensorflow.compile_flags),
        *_FLAGS,
        *(f"-I{folder}" for folder in (source.include, source.folder)),
        *(part for folder in include_folders(tensorflow) for part in ("-isystem", str(folder))),
        "-c",
        _UNIT,
        "-o",
        _OBJECT,
    ]


def _standard_first(flags: tuple[str, ...]) -> list[str]:
    """TensorFlow's flags, with C++17 where they name no standard."""
    named = any(flag.lstrip("-").startswith("std=") for flag in flags)
    return [*flags] if named else ["-std=c++17", *flags]


def include_folders(tensorflow: TensorFlowInstall) -> list[Path]:
    """The wheel's headers. Those of its dependencies expect to be included from their own roots."""
    external = tensorflow.include / "external"
    candidates = [tensorflow.include]
    for folder in sorted(external.iterdir()) if external.is_dir() else []:
        candidates += [folder, folder / "include"]
    candidates.append(external / "farmhash_archive" / "src")
    return [folder for folder in candidates if folder.is_dir()]


def _link_command(
    tensorflow: TensorFlowInstall, source: PluginSource, cxx: compiler.Compiler
) -> list[str]:
    # No rpath: whoever loads the plug-in has loaded the engine and TensorFlow before, and the
    # dynamic linker finds both by their SONAME.
    beside = [str(source.plugin)] if source.plugin is not None else []
    return [
        *cxx.command,
        *_LINK_FLAGS,
        f"-Wl,-soname,{source.name}",
        _OBJECT,
        *beside,
        f"-L{tensorflow.library_folder}",
        *(f"-l:{name}" for name in LIBRARIES),
        f"-L{source.engine.parent}",
        f"-l:{source.engine.name}",
        "-o",
        source.name,
    ]


def _write_record(path: Path, tensorflow: TensorFlowInstall, cxx: compiler.Compiler) -> None:
    record = {
        "tensorwire": __version__,
        "tensorflow": tensorflow.version,
        "compiler": cxx.version,
        "flags": [*tensorflow.compile_flags, *_FLAGS],
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _say(text: str) -> None:
    """Progress goes to stderr, so that it never mixes with what a script prints."""
    sys.stderr.write(text)
    sys.stderr.flush()
