"""The plug-in for the installed TensorFlow: from the package (`plugin.prebuilt`), or compiled once
into the cache (`plugin.cache`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tensorwire import __version__, engine, settings
from tensorwire.errors import TensorwireError
from tensorwire.plugin import cache, compiler, prebuilt
from tensorwire.plugin.cache import digest
from tensorwire.plugin.tensorflow_install import (
    LIBRARIES,
    TESTED,
    TensorFlowInstall,
    find_tensorflow,
)

PLUGIN_NAME = "tensorwire_plugin.so"
TYPICAL_S = 20
PREBUILT_VARIABLE = "TENSORWIRE_PREBUILT"
"""If 0, plug-ins in the package are ignored, and the plug-in is compiled."""

# NDEBUG: the wheels are built with it, and it changes the layout of some of TensorFlow's classes.
# Symbols stay visible, as in every library of custom operations, because TensorFlow and the plug-in
# must share the static variables of TensorFlow's inline functions.
_FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-pthread", "-w")
# Some systems link with --as-needed by default, which changes the order of libraries. With -z defs
# a symbol that TensorFlow does not export is found here, not when a job loads the plug-in.
_LINK_FLAGS = ("-shared", "-Wl,--no-as-needed", "-Wl,-z,defs")
_UNIT = "plugin.cc"


@dataclass(frozen=True)
class PluginSource:
    """The sources of a library, with the headers and the engine that it needs."""

    folder: Path
    include: Path
    engine: Path
    name: str = PLUGIN_NAME
    """Name of the library."""
    what: str = "the grpc++ plug-in"
    """The library's name in messages."""
    plugin: Path | None = None
    """The built plug-in, for a library that is linked with it."""
    plugin_headers: tuple[Path, ...] = ()
    """Folders of the plug-in's headers, for such a library."""
    prebuilt: Path | None = None
    """The folder of compiled libraries, if the package has one."""

    def units(self) -> list[Path]:
        """The files, which are compiled as one: names in anonymous namespaces must be distinct."""
        return sorted(self.folder.rglob("*.cc"))

    def files(self) -> list[Path]:
        """Every file whose change requires a new build."""
        headers = (*self.folder.rglob("*.h"), *self.include.rglob("*.h"))
        return self.units() + sorted(headers)

    def digest(self) -> str:
        """Digest of everything that a build depends on, except TensorFlow and the compiler."""
        parts: list[str | bytes] = [__version__, self.name, *_FLAGS, *_LINK_FLAGS]
        if self.plugin is not None:
            parts.append(self.plugin.parent.name)  # contains the digest of its sources
        for file in self.files():  # an include names a file's folder
            parts += [os.path.relpath(file, self.folder), file.read_bytes()]
        return digest(*parts)


def packaged_source() -> PluginSource:
    """The plug-in's source in this package."""
    native = engine.native_folder()
    return PluginSource(
        native / "plugin", native / "include", engine.engine_library(), prebuilt=native / "prebuilt"
    )


def ensure_built(
    tensorflow: TensorFlowInstall | None = None,
    source: PluginSource | None = None,
    rebuild: bool = False,
) -> Path:
    """The library of `source` (the plug-in) for `tensorflow` (the installed one).

    Builds it if needed. Any number of processes may call this: one builds, the others wait for it.
    Without a compiler, a build of the same source by another compiler is used. `rebuild` always
    compiles.
    Raises TensorwireError that says what to do; nothing half-built is left.
    """
    tensorflow = tensorflow or find_tensorflow()
    source = source or packaged_source()
    if not source.units():
        raise TensorwireError(f"no plug-in source in {source.folder}: install tensorwire again")
    carried = prebuilt.carried(source.prebuilt, source.digest)
    fitting = carried.fitting(tensorflow)
    if fitting is not None and not rebuild and settings.is_on(PREBUILT_VARIABLE, default=True):
        return fitting
    try:
        return cache.ensure_built(recipe(tensorflow, source), rebuild)
    except compiler.NoCompilerError as error:
        if fitting is None:
            raise carried.explain(tensorflow, error) from None
        raise compiler.NoCompilerError(
            f"tensorwire carries a plug-in for this TensorFlow, which {PREBUILT_VARIABLE}=0 or "
            f"--force leaves aside: {error}"
        ) from None


@dataclass(frozen=True)
class Inventory:
    """The plug-ins that exist for the installed TensorFlow."""

    tensorflow: TensorFlowInstall
    carried: prebuilt.Carried
    fitting: Path | None
    """The plug-in of `carried` that fits; None if there is none."""
    cached: list[Path]
    """Finished builds that fit."""
    unfit: list[Path]
    """Finished builds for another TensorFlow, or of another version of tensorwire."""

    def document(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "tensorflow": self.tensorflow.version,
            "library_folder": str(self.tensorflow.library_folder),
            "compile_flags": list(self.tensorflow.compile_flags),
            "fingerprint": self.tensorflow.fingerprint(self.carried.headers),
            "carried": {own: list(each.tensorflows) for own, each in self.carried.plugins.items()},
            "fitting": None if self.fitting is None else str(self.fitting),
            "cached": [str(path) for path in self.cached],
            "unfit": [str(path) for path in self.unfit],
        }


def inventory() -> Inventory:
    """Lists the plug-ins; compiles nothing. Raises TensorwireError as `find_tensorflow` does."""
    tensorflow, source = find_tensorflow(), packaged_source()
    carried = prebuilt.carried(source.prebuilt, source.digest)
    finished = sorted(cache.cache_folder().glob(f"*/{source.name}"))
    name = f"{recipe(tensorflow, source).key}-"
    fits = {library: library.parent.name.startswith(name) for library in finished}
    return Inventory(
        tensorflow,
        carried,
        fitting=carried.fitting(tensorflow),
        cached=[library for library in finished if fits[library]],
        unfit=[library for library in finished if not fits[library]],
    )


def recipe(tensorflow: TensorFlowInstall, source: PluginSource) -> cache.Recipe:
    key = digest(tensorflow.identity, *tensorflow.compile_flags, source.digest())
    return cache.Recipe(
        name=source.name,
        what=source.what,
        against=f"TensorFlow {tensorflow.version}",
        key=f"tf-{tensorflow.version}-{key}",
        command=lambda cxx: _command(tensorflow, source, cxx),
        units={_UNIT: _unit(source)},
        typical_s=TYPICAL_S,
        undefined_help=(
            f"this TensorFlow is in {tensorflow.library_folder}; tensorwire is tested with those "
            f"of PyPI, {TESTED}: install one of them, or report this if it is one"
        ),
    )


def _unit(source: PluginSource) -> str:
    """All sources as one unit, because most of the compile time goes into TensorFlow's headers.

    Measured with 8 source files: 14 s of CPU time in place of 80 s.
    """
    return "".join(f'#include "{unit.absolute()}"\n' for unit in source.units())


def _command(
    tensorflow: TensorFlowInstall, source: PluginSource, cxx: compiler.Compiler
) -> list[str]:
    # No rpath: the engine and TensorFlow are loaded before the plug-in, and the dynamic linker
    # finds both by their SONAME.
    beside = [str(source.plugin)] if source.plugin is not None else []
    return [
        *cxx.command,
        *_standard_first(tensorflow.compile_flags),
        *_FLAGS,
        *(f"-I{folder}" for folder in (source.include, source.folder, *source.plugin_headers)),
        *(part for folder in include_folders(tensorflow) for part in ("-isystem", str(folder))),
        _UNIT,
        *_LINK_FLAGS,
        f"-Wl,-soname,{source.name}",
        *beside,
        f"-L{tensorflow.library_folder}",
        *(f"-l:{name}" for name in LIBRARIES),
        f"-L{source.engine.parent}",
        f"-l:{source.engine.name}",
        "-o",
        source.name,
    ]


def _standard_first(flags: tuple[str, ...]) -> list[str]:
    """TensorFlow's flags, with C++17 where they name no standard."""
    named = any(flag.lstrip("-").startswith("std=") for flag in flags)
    return [*flags] if named else ["-std=c++17", *flags]


def include_folders(tensorflow: TensorFlowInstall) -> list[Path]:
    """The wheel's header folders; headers of its dependencies are included from their own roots."""
    external = tensorflow.include / "external"
    candidates = [tensorflow.include]
    for folder in sorted(external.iterdir()) if external.is_dir() else []:
        candidates += [folder, folder / "include"]
    candidates.append(external / "farmhash_archive" / "src")
    return [folder for folder in candidates if folder.is_dir()]
