"""Building the plug-in into the cache: once, atomically, and again if a dependency changes.

The compiler, the processes and the file system are real. TensorFlow is replaced by a folder with
two small libraries and a header, because compiling TensorFlow's headers is slow (tests/integration
does that).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from processes import wait_gone
from tensorwire.errors import TensorwireError
from tensorwire.plugin import build
from tensorwire.plugin.compiler import CompileError
from tensorwire.plugin.tensorflow_install import (
    LIBRARIES,
    TensorFlowInstall,
    check_version,
    find_tensorflow,
)

# Runs in its own process; the arguments are the workshop's folder and the changes.
BUILD_SCRIPT = """
import sys
from pathlib import Path
from tensorwire.errors import TensorwireError
from tensorwire.plugin.build import PluginSource, ensure_built
from tensorwire.plugin.tensorflow_install import TensorFlowInstall
root = Path(sys.argv[1])
try:
    print(ensure_built(
        TensorFlowInstall("2.99.0", root / "tf/include", root / "tf", ()),
        PluginSource(root / "plugin", root / "include", root / "engine/libtensorwire.so"),
    ))
except TensorwireError as error:
    sys.exit(f"tensorwire: error: {error}")
"""


@dataclass(frozen=True)
class Workshop:
    """A plug-in's source, a fake TensorFlow, a cache, and a compiler that counts its calls."""

    root: Path
    tensorflow: TensorFlowInstall
    source: build.PluginSource
    cache: Path
    log: Path

    def compilations(self) -> int:
        """How often the compiler compiled since the last call."""
        lines = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return len(lines)

    def build(self) -> Path:
        return build.ensure_built(self.tensorflow, self.source)

    def start(self, before: Sequence[str] = (), **env: str) -> subprocess.Popen[str]:
        """Builds in its own process; `before` is a command that runs it."""
        return subprocess.Popen(
            [*before, sys.executable, "-c", BUILD_SCRIPT, str(self.root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def cached(self) -> list[str]:
        """Everything in the cache except locks."""
        return sorted(p.name for p in self.cache.iterdir() if p.suffix != ".lock")


def shared_library(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-x", "c++", "-", f"-Wl,-soname,{path.name}", "-o", str(path)],
        input=code,
        text=True,
        check=True,
    )


def compiler_script(path: Path, before: str) -> Path:
    """A compiler that runs `before` and then g++."""
    path.write_text(
        f'#!/bin/sh\nfor a in "$@"; do case $a in\n  *.cc) {before};;\nesac; done\nexec g++ "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a workshop."""
    root = tmp_path_factory.mktemp("template")
    for name in LIBRARIES:
        shared_library(root / "tf" / name, f"int in_{name.split('.')[0]} = 1;")
    shared_library(root / "engine/libtensorwire.so", "int engine() { return 1; }")
    (root / "tf/include/external/some_library/include").mkdir(parents=True)
    (root / "tf/include/external/some_library/include/some.h").write_text("#define SOME 40\n")
    (root / "include/tensorwire").mkdir(parents=True)
    (root / "include/tensorwire/wire.h").write_text("#define OURS 2\n")
    (root / "plugin").mkdir()
    (root / "plugin/one.cc").write_text('#include "some.h"\n#include "two.h"\nint one = SOME;\n')
    (root / "plugin/two.cc").write_text('#include "tensorwire/wire.h"\nint two = OURS;\n')
    (root / "plugin/two.h").write_text("extern int two;\n")
    return root


@pytest.fixture
def workshop(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    root = shutil.copytree(template, tmp_path / "workshop")
    log = tmp_path / "compiled.log"
    wrapper = compiler_script(tmp_path / "counting-g++", f'basename "$a" >>{log}')
    monkeypatch.setenv("CXX", str(wrapper))
    cache = tmp_path / "cache"
    monkeypatch.setenv("TENSORWIRE_CACHE", str(cache))
    yield Workshop(
        root,
        TensorFlowInstall("2.99.0", root / "tf/include", root / "tf", ()),
        build.PluginSource(root / "plugin", root / "include", root / "engine/libtensorwire.so"),
        cache,
        log,
    )


def test_the_first_use_builds_and_the_second_does_not(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    library = workshop.build()
    assert library.read_bytes().startswith(b"\x7fELF")
    assert workshop.compilations() == 1
    said = capsys.readouterr().err
    assert "building the grpc++ plug-in for TensorFlow 2.99.0 (once, about " in said
    assert said.count("\n") == 1
    assert workshop.build() == library
    assert workshop.compilations() == 0
    assert capsys.readouterr().err == ""


def test_the_plugin_needs_tensorflow_in_the_right_order_and_the_engine_by_soname(
    workshop: Workshop,
) -> None:
    told = subprocess.run(
        ["objdump", "-p", str(workshop.build())], capture_output=True, text=True, check=True
    )
    needed = [line.split()[1] for line in told.stdout.splitlines() if "NEEDED" in line]
    order = [name for name in needed if name in {*LIBRARIES, "libtensorwire.so"}]
    assert order == [*LIBRARIES, "libtensorwire.so"]
    assert "RUNPATH" not in told.stdout


def test_processes_that_start_at_once_compile_once(workshop: Workshop, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waiting = f'basename "$a" >>{workshop.log}; while ! test -e {go}; do sleep 0.05; done'
    slow = compiler_script(tmp_path / "slow-g++", waiting)
    processes = [workshop.start(CXX=str(slow)) for _ in range(4)]
    # Each says whether it builds or waits, though the line of the one that builds has no end yet.
    errors = [process.stderr for process in processes if process.stderr is not None]
    told = [os.read(each.fileno(), 1000).decode() for each in errors]
    go.touch()
    ended = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, ended
    assert len({out for out, _ in ended}) == 1
    assert workshop.compilations() == 1
    assert sum("tensorwire: building" in line for line in told) == 1, told
    assert sum("another process is building" in line for line in told) == 3, told


@pytest.mark.parametrize(
    "changed", ["plugin/one.cc", "plugin/two.h", "include/tensorwire/wire.h", "plugin/three.cc"]
)
def test_a_changed_source_is_built_again(workshop: Workshop, changed: str) -> None:
    first = workshop.build()
    with (workshop.root / changed).open("a") as file:
        file.write("// changed\n")
    assert workshop.build() != first
    assert first.exists()  # running jobs still use it


def test_another_tensorflow_is_another_build(workshop: Workshop) -> None:
    first = workshop.build()
    newer = replace(workshop.tensorflow, version="2.99.1")
    assert build.ensure_built(newer, workshop.source) != first
    # The same version number with other libraries, as in a vendor's build.
    with (workshop.root / "tf" / LIBRARIES[1]).open("ab") as file:
        file.write(b"\0")
    assert workshop.build() != first


def test_another_compiler_is_another_build(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = workshop.build()
    newer = tmp_path / "newer-g++"
    newer.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo "g++ 99"; exit; }\nexec g++ "$@"\n')
    newer.chmod(0o755)
    monkeypatch.setenv("CXX", str(newer))
    assert workshop.build() != first


def test_asked_to_build_again_it_does(workshop: Workshop) -> None:
    library = workshop.build()
    workshop.compilations()
    assert build.ensure_built(workshop.tensorflow, workshop.source, rebuild=True) == library
    assert workshop.compilations() == 1


def test_no_compiler_says_what_to_install(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(workshop.root))
    with pytest.raises(TensorwireError, match="no C\\+\\+ compiler") as caught:
        workshop.build()
    for hint in ("apt-get install g++", "dnf install gcc-c++", "tensorwire build"):
        assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_finished_build_serves_where_there_is_no_compiler(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = workshop.build()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(workshop.root))
    assert workshop.build() == library


def test_a_compiler_named_by_cxx_that_is_not_there_is_named(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/no/such/g++ -pipe")
    with pytest.raises(TensorwireError, match="CXX names /no/such/g"):
        workshop.build()


def test_cxx_may_carry_arguments(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"env LC_ALL=C {os.environ['CXX']}")
    assert workshop.build().exists()


def test_an_error_of_the_compiler_gives_its_first_line_and_the_log(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    one = workshop.root / "plugin/one.cc"
    good = one.read_text()
    one.write_text("int one = NOT_DECLARED;\n")
    with pytest.raises(TensorwireError, match=r"one\.cc:1:.*error:.*NOT_DECLARED") as caught:
        workshop.build()
    log = next(workshop.cache.glob("*.log"))
    assert str(log) in str(caught.value)
    assert "NOT_DECLARED" in log.read_text()
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().err.endswith("failed\n")
    assert workshop.cached() == [log.name]
    one.write_text(good)
    assert workshop.build().exists()


def test_symbols_that_tensorflow_lacks_are_named_when_it_is_linked(workshop: Workshop) -> None:
    one = workshop.root / "plugin/one.cc"
    good = one.read_text()
    one.write_text(
        "namespace some { template <class T> void nobody_defines(const T&); void nor_this(); }\n"
        "void one() { some::nobody_defines(1UL); some::nobody_defines(2UL); some::nor_this(); }\n"
    )
    with pytest.raises(TensorwireError, match=r"TensorFlow 2\.99\.0, which lacks ") as caught:
        workshop.build()
    message = str(caught.value)
    named = "void some::nobody_defines<unsigned long>(unsigned long const&)"
    assert message.count(named) == 1
    assert "some::nor_this()" in message
    assert f"in {workshop.tensorflow.library_folder}; " in message
    assert "2.15 to 2.21: install one of them" in message
    assert "\n" not in message
    log = next(workshop.cache.glob("*.log"))
    assert str(log) in message
    assert workshop.cached() == [log.name]
    one.write_text(good)
    assert workshop.build().exists()


@pytest.mark.parametrize(
    ("line", "symbol"),
    [
        ("one.cc:(.text+0x5): undefined reference to `f(int const&)'", "f(int const&)"),
        ("plugin.o:one.cc:function one(): error: undefined reference to 'f(int)'", "f(int)"),
        ("ld.lld: error: undefined symbol: f(int)", "f(int)"),
        ("ld.lld: error: undefined hidden symbol: f(int)", "f(int)"),
        ("mold: error: undefined symbol: f(int)", "f(int)"),
    ],
)
def test_the_linkers_tell_what_they_miss(line: str, symbol: str) -> None:
    error = CompileError(["g++"], f"/usr/bin/ld: one.o: in function `one()':\n{line}\n{line}\n")
    assert error.undefined_symbols() == [symbol]


def test_an_interrupt_leaves_neither_files_nor_compilers(
    workshop: Workshop, tmp_path: Path
) -> None:
    mark = tmp_path / "started"
    hanging = compiler_script(tmp_path / "hanging-g++", f"echo $$ >>{mark}; sleep 300")
    process = workshop.start(CXX=str(hanging))
    wait_for(lambda: mark.exists() and len(mark.read_text().split()) >= 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "stopped" in errors
    assert workshop.cached() == []
    assert wait_gone([int(pid) for pid in mark.read_text().split()], timeout_s=20) == []


def test_what_a_killed_build_left_is_not_used(workshop: Workshop, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    hanging = compiler_script(tmp_path / "hanging-g++", f"echo $$ >>{mark}; sleep 30")
    process = workshop.start(CXX=str(hanging))
    wait_for(lambda: mark.exists() and len(mark.read_text().split()) >= 1)
    process.kill()
    process.communicate(timeout=20)
    for pid in mark.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    assert workshop.cached()[0].startswith(".")
    library = workshop.build()  # with the counting compiler, which prints the same --version
    assert workshop.compilations() == 1
    assert workshop.cached() == [library.parent.name]


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Below a file, where even root cannot make a folder.
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    monkeypatch.setenv("TENSORWIRE_CACHE", str(cache))
    with pytest.raises(
        TensorwireError, match=r"Not a directory.*let TENSORWIRE_CACHE name"
    ) as caught:
        workshop.build()
    assert str(cache) in str(caught.value)


@pytest.mark.parametrize("level", [0, 1, 2], ids=["library", "build", "cache"])
def test_what_every_user_can_write_is_not_loaded(workshop: Workshop, level: int) -> None:
    library = workshop.build()
    path = [library, *library.parents][level]
    path.chmod(0o777)
    with pytest.raises(TensorwireError, match="can be written by every user") as caught:
        workshop.build()
    assert f"chmod o-w {path}" in str(caught.value)
    path.chmod(0o1777)  # as /tmp: others can add files, but cannot replace ours
    assert workshop.build() == library


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away requires root")
@pytest.mark.parametrize("level", [0, 1, 2], ids=["library", "build", "cache"])
def test_what_belongs_to_another_user_is_not_loaded(workshop: Workshop, level: int) -> None:
    library = workshop.build()
    path = [library, *library.parents][level]
    os.chown(path, 12345, -1)
    with pytest.raises(TensorwireError, match=f"{path} belongs to another user"):
        workshop.build()


def test_a_build_is_not_writable_by_others_whatever_the_umask(workshop: Workshop) -> None:
    before = os.umask(0)
    try:
        assert workshop.build() == workshop.build()
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system requires root")
@pytest.mark.parametrize("free_kb", [0, 20])
def test_a_full_disk_is_named_and_nothing_half_built_is_left(
    workshop: Workshop, free_kb: int
) -> None:
    workshop.cache.mkdir()
    fill = f"mount -t tmpfs -o size=128k tmpfs {workshop.cache} && cd {workshop.cache}"
    fill += f" && head -c {128 - free_kb}k /dev/zero >filler"
    process = workshop.start(
        ["unshare", "--mount", "sh", "-c", f'{fill} && "$@"; ls -A; exit 3', "sh"]
    )
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "No space left on device" in errors
    assert "let TENSORWIRE_CACHE name a folder" in errors
    assert "Traceback" not in errors
    assert [name for name in output.split() if not name.endswith(".lock")] == ["filler"]


def test_a_finished_build_is_used_from_a_cache_that_cannot_be_written(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = workshop.build()
    monkeypatch.setattr(
        "tensorwire.plugin.cache._locked", lambda _: pytest.fail("wrote to a finished cache")
    )
    assert workshop.build() == library


@pytest.mark.parametrize("version", ["1.15.5", "2.14.1", "nonsense"])
def test_a_tensorflow_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(TensorwireError, match=rf"{version} is too old.*tensorflow>=2\.15"):
        check_version(version)


def test_a_tensorflow_that_is_newer_than_tested_is_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"2\.22\.0 is newer than 2\.21"):
        check_version("2.22.0")


@pytest.mark.parametrize("version", ["2.15.0", "2.21.3", "2.18.0-rc1", "2.20.0+nv25.1"])
def test_tensorflows_between_pass_silently(version: str, recwarn: pytest.WarningsRecorder) -> None:
    check_version(version)
    assert not recwarn.list


def test_no_tensorflow_says_how_to_install_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n == "tensorflow" or n.startswith("tensorflow.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    with pytest.raises(TensorwireError, match="pip install tensorflow"):
        find_tensorflow()


def wait_for(condition: object, timeout_s: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
