"""The format of tensors that travel as one, tested in C++ against the installed TensorFlow."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tensorwire.plugin import compiler
from tensorwire.plugin.build import include_folders, packaged_source
from tensorwire.plugin.tensorflow_install import LIBRARIES, find_tensorflow

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300, method="thread", func_only=True)]

TEST = Path(__file__).with_name("native") / "fused_tensor_test.cc"


def test_fused_tensors_come_apart_and_bad_bytes_are_refused(tmp_path: Path) -> None:
    tensorflow = find_tensorflow()
    source = packaged_source()
    units = [source.folder / "fused_tensor.cc", source.folder / "pool_allocator.cc"]
    (tmp_path / "unit.cc").write_text("".join(f'#include "{unit}"\n' for unit in [*units, TEST]))
    libraries = [tensorflow.library_folder, source.engine.parent]
    compiler.run(
        [
            *compiler.find_compiler().command,
            *tensorflow.compile_flags,
            *("-O1", "-DNDEBUG", "-w", "-pthread"),
            *(f"-I{folder}" for folder in (source.include, source.folder)),
            *(part for at in include_folders(tensorflow) for part in ("-isystem", str(at))),
            "unit.cc",
            *(f"-L{folder}" for folder in libraries),
            *(f"-l:{name}" for name in (*LIBRARIES, source.engine.name)),
            *("-o", "fused_tensor_test"),
        ],
        tmp_path,
    )
    done = subprocess.run(
        [tmp_path / "fused_tensor_test"],
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
