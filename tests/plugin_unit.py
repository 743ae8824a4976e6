"""Compiles C++ against the installed TensorFlow, together with files of the plug-in.

usage: python tests/plugin_unit.py PROGRAM COMPILER    (its fuzz targets, for libFuzzer; .ci/fuzz)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorwire.plugin import compiler
from tensorwire.plugin.build import include_folders, packaged_source
from tensorwire.plugin.tensorflow_install import LIBRARIES, find_tensorflow

NATIVE = Path(__file__).parents[1] / "native"
UNIT_TESTS = NATIVE / "tensorflow/tests/unit_tests.cc"
UNIT_FILES = (
    "tensors/fused_tensor.cc",
    "tensors/pool_allocator.cc",
    "transport/push_inbox.cc",
    "transport/push_steps.cc",
    "transport/standing_orders.cc",
    "calls/status.cc",
    "tensors/tensor_codec.cc",
    "metrics/tensor_figures.cc",
)
FUZZ = NATIVE / "tensorflow/fuzz/plugin_fuzz.cc"
LIBFUZZER = (
    *("-O1", "-g", "-fsanitize=fuzzer,address,undefined"),
    *("-fno-sanitize=vptr,function", "-fno-sanitize-recover=undefined"),
)
# Not optimized, because compiling takes most of the time of these tests.
# The UBSan checks with which GCC compiles TensorFlow's headers; others break constant expressions.
ADDRESS = (
    *("-O0", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
    *("-fno-sanitize-recover=undefined", "-fno-sanitize=vptr,null"),
    "-fno-sanitize=nonnull-attribute,returns-nonnull-attribute",
)
# Undefined as in TensorFlow's build, because it changes the layout of protobuf's classes.
THREAD = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=thread", "-U__SANITIZE_THREAD__")
# Undefined as in TensorFlow's build, because ASan changes the layout of absl's and protobuf's
# classes.
_AS_TENSORFLOW = '#include "absl/base/config.h"\n#undef ABSL_HAVE_ADDRESS_SANITIZER\n'


def _compile(command: Sequence[str], folder: Path) -> None:
    try:
        compiler.run(command, folder)
    except compiler.CompileError as error:
        raise AssertionError(error.output) from None


def _unit(output: Path, files: Sequence[Path], begin: str = "") -> Path:
    """Many sources as one, beside the output, because headers take most of the compilation."""
    unit = output.with_suffix(".unit.cc")
    unit.write_text(begin + "".join(f'#include "{file}"\n' for file in files))
    return unit


def build_unit(
    program: Path,
    own: Sequence[str] | None,
    others: Sequence[Path],
    command: Sequence[str] | None = None,
    flags: Sequence[str] = ("-O1",),
    engine: Path | None = None,
) -> None:
    """Compiles `program` from the plug-in's files `own` (default: all) and `others`, as one unit.

    It uses the installed engine, unless another one is given.
    """
    tensorflow = find_tensorflow()
    source = packaged_source()
    named = source.units() if own is None else [source.folder / name for name in own]
    files = [*named, *others]
    unit = _unit(program, files, _AS_TENSORFLOW)
    engine = engine or source.engine
    libraries = [tensorflow.library_folder, engine.parent]
    _compile(
        [
            *(command or compiler.find_compiler().command),
            *tensorflow.compile_flags,
            *(*flags, "-DNDEBUG", "-w", "-pthread"),
            *(f"-I{folder}" for folder in (source.include, source.folder)),
            *(part for at in include_folders(tensorflow) for part in ("-isystem", str(at))),
            unit.name,
            *(f"-L{folder}" for folder in libraries),
            *(f"-Wl,-rpath,{folder}" for folder in libraries),
            *(f"-l:{name}" for name in (*LIBRARIES, engine.name)),
            "-ldl",
            *("-o", program.name),
        ],
        program.parent,
    )


def build_engine(library: Path, command: Sequence[str], flags: Sequence[str]) -> None:
    """Compiles the engine as a library from the sources of this tree."""
    wire = NATIVE / "wire"
    unit = _unit(library, sorted((wire / "src").glob("*.cc")))
    _compile(
        [
            *(*command, "-std=c++20", *flags, "-w", "-pthread", "-shared", "-fPIC"),
            *("-DTENSORWIRE_BUILDING", f"-I{wire / 'include'}", f"-I{wire / 'src'}"),
            *(unit.name, "-ldl", "-o", library.name),
        ],
        library.parent,
    )


def check(command: Sequence[str | Path], **environment: str) -> None:
    """Runs a program; fails with its output unless it exits with 0."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    build_unit(Path(sys.argv[1]).absolute(), None, [FUZZ], [sys.argv[2]], LIBFUZZER)
