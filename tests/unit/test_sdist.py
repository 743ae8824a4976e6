"""The source distribution must contain everything that `make test` needs."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

backend = pytest.importorskip("scikit_build_core.build")

ROOT = Path(__file__).parents[2]


def test_it_has_the_makefile_its_scripts_and_all_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    name = backend.build_sdist(str(tmp_path))
    with tarfile.open(tmp_path / name) as archive:
        files = {member.name.partition("/")[2]: member for member in archive if member.isfile()}
    needed = {
        path.relative_to(ROOT).as_posix()
        for folder in (".ci", "benchmarks", "examples", "native", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", ".hypothesis"} & set(path.parts)
    }
    assert {"Makefile", "pyproject.toml", "CMakeLists.txt", *needed} <= files.keys()
    assert files[".ci/native-test"].mode & 0o100
