"""Compiles C++ against the installed TensorFlow, together with files of the plug-in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tensorwire.plugin import compiler
from tensorwire.plugin.build import include_folders, packaged_source
from tensorwire.plugin.tensorflow_install import LIBRARIES, find_tensorflow


def build_unit(program: Path, own: Sequence[str], others: Sequence[Path]) -> None:
    """`program` from the plug-in's files `own` and from `others`, as one unit."""
    tensorflow = find_tensorflow()
    source = packaged_source()
    files = [*(source.folder / name for name in own), *others]
    unit = program.with_suffix(".unit.cc")
    unit.write_text("".join(f'#include "{file}"\n' for file in files))
    libraries = [tensorflow.library_folder, source.engine.parent]
    compiler.run(
        [
            *compiler.find_compiler().command,
            *tensorflow.compile_flags,
            *("-O1", "-DNDEBUG", "-w", "-pthread"),
            *(f"-I{folder}" for folder in (source.include, source.folder)),
            *(part for at in include_folders(tensorflow) for part in ("-isystem", str(at))),
            unit.name,
            *(f"-L{folder}" for folder in libraries),
            *(f"-Wl,-rpath,{folder}" for folder in libraries),
            *(f"-l:{name}" for name in (*LIBRARIES, source.engine.name)),
            *("-o", program.name),
        ],
        program.parent,
    )


def check(program: Path, *arguments: str, **environment: str) -> None:
    """Fails with what the program says unless it exits with 0."""
    done = subprocess.run(
        [program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
