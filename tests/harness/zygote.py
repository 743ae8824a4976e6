"""Tasks of a LocalCluster that are forked from a process with TensorFlow imported.

TensorFlow's import takes most of the time that a task needs to start. `Zygotes` imports it once for
each setting that the import reads from the environment, and forks tasks from there: see
zygote_server.py. A task is forked only if it then is what an exec would have made of it: Python
that uses TensorFlow, and an environment that differs from this process's own only in variables that
are read later, or that choose the zygote. All else is started by an exec.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from harness import zygote_server
from harness.zygote_server import PACKET_BYTES, READY, TOKEN_VARIABLE
from tensorwire.bench.lab import local
from tensorwire.bench.lab.local import Process, Stream

# Read when Python starts or TensorFlow is imported: one zygote for each combination.
SETTINGS = (
    "CUDA_VISIBLE_DEVICES",
    "PYTHONFAULTHANDLER",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_USE_LEGACY_KERAS",
)
# Read later, by the plug-in, by TensorFlow's servers or by a test's script, so a task may have its
# own. `test_zygote.py` watches what an import reads. TMPDIR it does; the task reads it again.
READ_LATER = frozenset(
    (
        "MODEL_DIR",
        "NETWORK_PS_CORE_NUMBER",
        "NETWORK_WORKER_CORE_NUMBER",
        "PROTOCOL",
        "PYTEST_CURRENT_TEST",
        "PS_DISABLE_PIN_CORES",
        "PS_ENABLE_POLLING",
        "TF_CONFIG",
        "TF_NUM_INTRAOP_THREADS",
        "TEST_FILE",
        "TMPDIR",
        "WORKER_DISABLE_PIN_CORES",
        "WORKER_ENABLE_POLLING",
        "XDG_RUNTIME_DIR",
        "no_grpc_proxy",
    )
)
READ_LATER_PREFIX = "TENSORWIRE_"

execute = local.start_process
"""Starts a process by an exec, also while `forking` is entered."""

_AT_MOST = 4
_ANSWER_S = 120.0
_TOKEN_ROOM_BYTES = 512
_TASK_HOST = "tensorwire.bench.frame.task_host"


class ZygoteLost(Exception):
    """The zygote has ended, and all its tasks with it."""


class ForkedProcess:
    """A task that a zygote has forked. Like a Popen."""

    def __init__(
        self, zygote: Zygote, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._zygote = zygote
        self._lock = threading.Lock()
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                self.returncode = self._zygote.reap(self.pid)
                if self.returncode is not None:
                    os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while (code := self.poll()) is None:
            ended = select.poll()
            ended.register(self._ended, select.POLLIN)
            if not ended.poll(None if timeout is None else max(0.0, timeout) * 1000):
                raise subprocess.TimeoutExpired(f"task {self.pid}", timeout or 0.0)
        return code


class Zygote:
    """A process with TensorFlow imported, and the tasks forked from it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Imports TensorFlow with this environment."""
        self._lock = threading.Lock()
        self._requests = 0
        self._alive: set[int] = set()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(_ANSWER_S)
        with theirs, tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [sys.executable, zygote_server.__file__],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=log,
                # One thread: a fork copies the thread that calls it, and no other.
                env={
                    **env,
                    "OPENBLAS_NUM_THREADS": "1",
                    TOKEN_VARIABLE: "x" * _TOKEN_ROOM_BYTES,
                },
                start_new_session=True,
            )
            try:
                theirs.close()
                packet = self._connection.recv(PACKET_BYTES)
                if packet != READY:
                    log.seek(0)
                    raise ZygoteLost(f"the zygote says {packet!r}; {log.read().decode()}")
            except BaseException:
                self.close()
                raise

    @property
    def is_idle(self) -> bool:
        """True if no task of it runs."""
        return not self._alive

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        with self._lock:
            self._requests += 1
            packet = json.dumps({"id": self._requests, **request}).encode()
            try:
                socket.send_fds(self._connection, [packet], descriptors)
                while True:
                    answer = json.loads(self._connection.recv(PACKET_BYTES) or b"null")
                    if answer is None:
                        raise ZygoteLost
                    # An exception may have interrupted the wait for an earlier answer.
                    if answer["id"] == self._requests:
                        return dict(answer)
            except (BrokenPipeError, ConnectionResetError):
                raise ZygoteLost from None

    def fork(
        self,
        task: Mapping[str, Any],
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
    ) -> ForkedProcess:
        """Starts a task. Raises OSError if that is not possible."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            parent_stdin = parent_stdout = None
            if stdin == subprocess.PIPE:
                stdin, write = os.pipe()
                theirs.callback(os.close, stdin)
                parent_stdin = ours.enter_context(os.fdopen(write, "wb"))
            if stdout == subprocess.PIPE:
                read, stdout = os.pipe()
                theirs.callback(os.close, stdout)
                parent_stdout = ours.enter_context(os.fdopen(read, "rb"))
            null = os.open(os.devnull, os.O_RDWR)
            theirs.callback(os.close, null)
            streams = [
                each if isinstance(each, int) else each.fileno() for each in (stdin, stdout, stderr)
            ]
            descriptors = [null if each == subprocess.DEVNULL else each for each in streams]
            answer = self._ask({"fork": task}, descriptors)
            if "errno" in answer:
                raise OSError(answer["errno"], os.strerror(answer["errno"]), task["cwd"])
            self._alive.add(answer["pid"])
            ours.pop_all()
        return ForkedProcess(self, answer["pid"], parent_stdin, parent_stdout)

    def reap(self, pid: int) -> int | None:
        """The exit status of a task, or None while it runs."""
        try:
            code: int | None = self._ask({"reap": pid})["code"]
        except ZygoteLost:
            code = -signal.SIGKILL
        if code is not None:
            self._alive.discard(pid)
        return code

    def close(self) -> None:
        self._connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Zygotes:
    """Starts processes as `local.start_process` does: by a fork if that makes no difference."""

    def __init__(self) -> None:
        self._own = dict(os.environ)
        self._lock = threading.Lock()
        # The last used at the end. None: the import of TensorFlow leaves threads.
        self._zygotes: dict[tuple[str | None, ...], Zygote | None] = {}

    def close(self) -> None:
        """Ends the zygotes, and the tasks that still run."""
        while self._zygotes:
            _, zygote = self._zygotes.popitem()
            if zygote is not None:
                zygote.close()

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
        env: Mapping[str, str],
        cwd: Path | None,
    ) -> Process:
        task = self._task(argv, env, cwd or Path.cwd())
        if task is not None:
            key = tuple(env.get(name) for name in SETTINGS)
            with self._lock:
                zygote = self._zygote(key, env)
                if zygote is not None:
                    try:
                        return zygote.fork(task, stdin, stdout, stderr)
                    except ZygoteLost:
                        del self._zygotes[key]
                        zygote.close()
                        raise
        return execute(argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd)

    def _task(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Any:
        """What a zygote is to run, or None if the process must be started by an exec."""
        for name in {**self._own, **env}:
            free = name in READ_LATER or name in SETTINGS or name.startswith(READ_LATER_PREFIX)
            if not free and env.get(name) != self._own.get(name):
                return None
        if len(env.get(TOKEN_VARIABLE, "")) > _TOKEN_ROOM_BYTES:
            return None
        if len(argv) < 2 or argv[0] != sys.executable:
            return None
        common = {"env": dict(env), "cwd": str(cwd)}
        if argv[1] == "-m" and len(argv) > 2:
            named = argv[3].partition(":")[0] if argv[2] == _TASK_HOST else argv[2]
            found = importlib.util.find_spec(named)
            if found is None or found.origin is None or not _uses_tensorflow(Path(found.origin)):
                return None
            return {"module": argv[2], "arguments": argv[3:], **common}
        if argv[1] == "-c" and len(argv) > 2 and "tensorflow" in argv[2]:
            return {"code": argv[2], "arguments": argv[3:], **common}
        script = cwd / argv[1]
        if argv[1].startswith("-") or not script.is_file() or not _uses_tensorflow(script):
            return None
        return {"script": argv[1], "arguments": argv[2:], **common}

    def _zygote(self, key: tuple[str | None, ...], env: Mapping[str, str]) -> Zygote | None:
        """The zygote of a key, or None if there can be none."""
        if key in self._zygotes:
            self._zygotes[key] = zygote = self._zygotes.pop(key)
            return zygote
        if len(self._zygotes) >= _AT_MOST:
            idle = next((k for k, each in self._zygotes.items() if each and each.is_idle), None)
            if idle is None:
                return None
            ended = self._zygotes.pop(idle)
            assert ended is not None
            ended.close()
        settings = {name: env[name] for name in SETTINGS if name in env}
        others = {name: value for name, value in self._own.items() if name not in SETTINGS}
        try:
            self._zygotes[key] = Zygote({**others, **settings})
        except ZygoteLost as lost:
            warnings.warn(f"tasks are started by an exec: {lost}", stacklevel=1)
            self._zygotes[key] = None
        return self._zygotes[key]


def _uses_tensorflow(source: Path) -> bool:
    return b"tensorflow" in source.read_bytes()


@contextlib.contextmanager
def forking() -> Iterator[Zygotes]:
    """While it is entered, every LocalCluster of this process starts its tasks by `Zygotes`."""
    zygotes = Zygotes()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "start_process", zygotes.start)
            yield zygotes
    finally:
        zygotes.close()


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with captured text, but forked where the tasks of a LocalCluster are."""
    with tempfile.TemporaryFile("w+b") as output, tempfile.TemporaryFile("w+b") as errors:
        process = local.start_process(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=os.environ if env is None else env,
            cwd=cwd,
        )
        try:
            process.wait(timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        output.seek(0)
        errors.seek(0)
        said, logged = output.read().decode(), errors.read().decode()
    return subprocess.CompletedProcess(list(argv), code, said, logged)
