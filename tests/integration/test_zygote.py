"""Tasks that a zygote forks are as an exec would have made them, and end with the tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import zygote
from processes import wait_gone
from tensorwire.bench.lab import LocalCluster, TaskProcess, cleanup_process, local

pytestmark = pytest.mark.newest

SHOW = """
import faulthandler, json, locale, os, resource, signal, sys, tempfile, threading

status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
shown = {
    "argv": [sys.argv, sys.orig_argv, sys.executable, sys.flags],
    "path": sys.path,
    "environ": dict(os.environ),
    "place": [os.getcwd(), tempfile.gettempdir()],
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
    "limits": [
        resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    ],
    "umask": os.umask(0),
    "faulthandler": faulthandler.is_enabled(),
    "threads": threading.active_count(),
    "locale": locale.getlocale(),
    "main": [__name__, __file__, __spec__ and __spec__.name],
    "module": sys.modules["__main__"].__dict__ is globals(),
    "loader": [type(__loader__).__name__, __loader__.path],
    "streams": [
        [s.name, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()]
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "heard": sys.stdin.read(),
}
import tensorflow as tf

shown["tensorflow"] = [tf.__version__, tf.executing_eagerly(), tf.config.get_visible_devices()[0]]
print(json.dumps(shown, default=str))
"""

END = """
# Mentions tensorflow, so that it is forked.
import atexit, os, signal, sys, threading, time

def late():
    time.sleep(0.1)
    print("a thread ends")

atexit.register(print, "the interpreter ends")
threading.Thread(target=late).start()
exec(sys.argv[1])
"""

RANDOM = """
import random

import numpy as np
import tensorflow as tf

server = tf.compat.v1.train.Server.create_local_server()
with tf.compat.v1.Session(server.target) as session:
    (device,) = session.list_devices()
print([random.random(), np.random.rand(), float(tf.random.uniform([])), device.incarnation])
"""

KILLED = """
import sys, time
from pathlib import Path

from harness import zygote
from tensorwire.bench.lab import LocalCluster

with zygote.forking(), LocalCluster({"task": 1}) as cluster:
    task = cluster.start("task", 0, [sys.executable, sys.argv[1]], stdout=Path(sys.argv[2]))
    assert isinstance(task.process, zygote.ForkedProcess)
    while not Path(sys.argv[2]).read_text().endswith("\\n"):
        time.sleep(0.05)
    status = Path(f"/proc/{task.pid}/status").read_text()
    print(status.partition("PPid:")[2].split()[0], cluster.directory, flush=True)
    time.sleep(120)
"""

WITH_A_CHILD = """
import os, time  # no tensorflow is needed here

own = os.getpid()
child = os.fork()
if child == 0:
    os.setsid()  # in no group and no session of its task
else:
    print(own, child, flush=True)
time.sleep(120)
"""


@pytest.fixture(scope="module", autouse=True)
def zygotes() -> Iterator[zygote.Zygotes]:
    with zygote.forking() as zygotes:
        yield zygotes


def made(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def done(task: TaskProcess) -> int:
    return task.process.wait(100)


@contextlib.contextmanager
def by_exec() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "start_process", zygote.execute)
        yield


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of modules; the same for all tests, because PYTHONPATH chooses the zygote."""
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.mark.parametrize("how", ["script", "module", "code"])
def test_a_forked_task_is_what_an_exec_makes_of_it(how: str, tmp_path: Path, modules: Path) -> None:
    script = made(modules, SHOW, "shown_by_a_task.py")
    code = SHOW.replace("__file__", "None").replace("__loader__.path", "None")
    named = {"script": [str(script)], "module": ["-m", script.stem], "code": ["-c", code]}
    command = [sys.executable, *named[how], "a b"]
    env = {
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": str(modules),
        "TENSORWIRE_TEST_MARK": "\u00fc" * 3000,
        "TF_CONFIG": '{"task": {}}',
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    (tmp_path / "place").mkdir()
    shown, logs = [], []
    with LocalCluster({"task": 1}) as cluster:
        for start in (by_exec, contextlib.nullcontext):
            with start():
                output = tmp_path / "output"
                task = cluster.start("task", 0, command, env, output, cwd=tmp_path / "place")
            assert isinstance(task.process, zygote.ForkedProcess) == (start is not by_exec)
            assert done(task) == 0, task.tail()
            shown.append(json.loads(output.read_text()))
            logs.append(re.sub(r" *\d+", "#", task.log.read_text()))
    executed, forked = shown
    assert forked == executed
    assert forked["environ"]["TENSORWIRE_TEST_MARK"] == "\u00fc" * 3000
    # Also what the import has logged.
    assert "cpu_feature_guard" in logs[1] and logs[1] == logs[0]


@pytest.mark.parametrize(
    ("act", "status", "said", "logged"),
    [
        ("pass", 0, "a thread ends\nthe interpreter ends\n", ""),
        ("sys.exit(7)", 7, "a thread ends\nthe interpreter ends\n", ""),
        ("sys.exit('no disk')", 1, "a thread ends\nthe interpreter ends\n", "no disk\n"),
        ("1 / 0", 1, "a thread ends\nthe interpreter ends\n", "ZeroDivisionError"),
        ("os._exit(3)", 3, "", ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "", ""),
        ("os.abort()", -signal.SIGABRT, "", ""),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, None, "KeyboardInterrupt"),
    ],
)
def test_a_forked_task_ends_as_the_interpreter_ends(
    act: str, status: int, said: str | None, logged: str, tmp_path: Path
) -> None:
    script, output = made(tmp_path, END), tmp_path / "output"
    with LocalCluster({"task": 1}, may_fail=True) as cluster:
        task = cluster.start("task", 0, [sys.executable, str(script), act], stdout=output)
        assert isinstance(task.process, zygote.ForkedProcess)
        assert done(task) == status == task.poll()
        assert logged in task.log.read_text()
        assert task.has_failed() == (status != 0)
    if said is not None:
        assert output.read_text() == said


def test_a_signal_to_a_forked_task_reaches_its_group_and_ends_it(tmp_path: Path) -> None:
    script = made(tmp_path, "# no tensorflow\nimport os, time\nos.fork()\ntime.sleep(120)\n")
    with LocalCluster({"task": 1}) as cluster:
        task = cluster.start("task", 0, [sys.executable, str(script)])
        with pytest.raises(subprocess.TimeoutExpired):
            task.process.wait(0.2)
        assert task.poll() is None
        task.stop(signal.SIGTERM)
        assert task.poll() == -signal.SIGTERM
        assert cleanup_process.processes_with(cluster.directory.name.partition("-")[2]) == []


def test_forked_tasks_draw_different_random_numbers(tmp_path: Path) -> None:
    script = made(tmp_path, RANDOM)
    outputs = [tmp_path / "0", tmp_path / "1"]
    with LocalCluster({"task": 2}) as cluster:
        command = [sys.executable, str(script)]
        tasks = [cluster.start("task", i, command, stdout=outputs[i]) for i in range(2)]
        cluster.wait(tasks, 100)
    first, second = (json.loads(output.read_text()) for output in outputs)
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_task_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    script = made(tmp_path, "import tensorflow")
    with (
        LocalCluster({"task": 1}) as cluster,
        pytest.raises(local.TensorwireError, match=r"cannot start task:0: .*No such file"),
    ):
        cluster.start("task", 0, [sys.executable, str(script)], cwd=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("# no T F", {}),
        ("# tensorflow", {"TF_UNHEARD_OF": "1"}),
        ("# tensorflow", {"HOME": "/"}),
        ("# tensorflow", {"LD_PRELOAD": "/lib/libm.so.6"}),
    ],
)
def test_what_a_fork_might_change_is_executed(
    text: str, env: dict[str, str], tmp_path: Path
) -> None:
    script = made(tmp_path, text)
    with LocalCluster({"task": 1}) as cluster:
        task = cluster.start("task", 0, [sys.executable, str(script)], env)
        assert isinstance(task.process, subprocess.Popen)


def test_nothing_is_left_when_the_tests_are_killed(tmp_path: Path) -> None:
    script, task = made(tmp_path, KILLED), made(tmp_path, WITH_A_CHILD, "task.py")
    output = tmp_path / "output"
    tests = str(Path(zygote.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, script, task, output],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": tests, "TMPDIR": str(tmp_path)},
        text=True,
    ) as killed:
        assert killed.stdout is not None
        parent, directory = killed.stdout.readline().split()
        killed.kill()
    pids = [int(parent), *map(int, output.read_text().split())]
    assert len(pids) == 3
    assert wait_gone(pids) == []
    removed = Path(directory)
    for _ in range(100):
        if not removed.exists():
            break
        signal.sigtimedwait([], 0.1)
    assert not removed.exists()


WATCH = """
import json, os, sys

seen = set()
inner = os._Environ.__getitem__

def watched(self, name):
    seen.add(os.fsdecode(name))
    return inner(self, name)

os._Environ.__getitem__ = watched
import tensorflow
os._Environ.__getitem__ = inner
print(json.dumps(sorted(seen)))
"""

GETENV = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char** environ;

static char* watched(const char* name) {
  static int log = -1;
  size_t length = strlen(name);
  for (char** entry = environ; entry && *entry; ++entry) {
    if (log < 0 && !strncmp(*entry, "GETENV_LOG=", 11)) {
      log = open(*entry + 11, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
  }
  if (log >= 0) dprintf(log, "%s\n", name);
  for (char** entry = environ; entry && *entry; ++entry) {
    if (!strncmp(*entry, name, length) && (*entry)[length] == '=') return *entry + length + 1;
  }
  return NULL;
}
char* getenv(const char* name) { return watched(name); }
char* secure_getenv(const char* name) { return watched(name); }
"""


def test_variables_that_a_task_may_have_of_its_own_are_not_read_by_the_import(
    tmp_path: Path,
) -> None:
    source, library = made(tmp_path, GETENV, "getenv.c"), tmp_path / "getenv.so"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", library, source], check=True)
    log = tmp_path / "log"
    env = {**os.environ, "LD_PRELOAD": str(library), "GETENV_LOG": str(log)}
    command = [sys.executable, "-c", WATCH]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=100)
    read: set[Any] = {*json.loads(done.stdout), *log.read_text().split()}
    assert {"TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "PYTHONPATH"} <= read
    assert read & zygote.READ_LATER <= {"TMPDIR"}
    assert not [name for name in read if name.startswith(zygote.READ_LATER_PREFIX)]
