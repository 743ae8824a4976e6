"""The process that a Zygote (zygote.py) starts: it imports TensorFlow and forks one task a request.

A stand-alone script. Standard input and output are a socket whose other end only the starter holds;
this process ends when that end is closed. Standard error is a file. A request and its answer are
JSON, one packet each:

    {"id", "fork": {"script", "module" or "code", "arguments", "env", "cwd"}}, and three descriptors
        -> {"id", "pid"} when the task runs, or {"id", "errno"} when it cannot be started
    {"id", "reap": pid} -> {"id", "code"}: the exit status as `Popen.returncode`, null while it runs

A task is not reaped until the starter asks, so its id is not given to another process before that.

The task's code is the last that the main thread runs here, so the interpreter ends it as usual:
SystemExit, uncaught exceptions, threads, functions of atexit.
"""

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder; a task has its own there

import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import signal
import socket
import tempfile
import types
from typing import Any

TOKEN_VARIABLE = "TENSORWIRE_LAB"
PACKET_BYTES = 1 << 17
READY = b"ready"
_PR_SET_PDEATHSIG = 1


class _TokenInPlace:
    """The value of TENSORWIRE_LAB in the memory that /proc/PID/environ shows.

    It is that of the exec, which a change of `os.environ` does not reach; the cleaning up of a
    cluster looks there for its tasks. A process that the task forks has a copy.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        self._address: int = libc.getenv(TOKEN_VARIABLE.encode())
        self.room_bytes = len(os.environ[TOKEN_VARIABLE])

    def write(self, token: bytes) -> None:
        if len(token) > self.room_bytes:
            raise ValueError(f"no room for {token!r}")
        ctypes.memmove(self._address, token.ljust(self.room_bytes, b"\0"), self.room_bytes)


def _become(task: dict[str, Any], descriptors: list[int], token: _TokenInPlace) -> None:
    """Gives this process what an exec would have given it. What cannot be given raises OSError."""
    token.write(os.fsencode(task["env"].get(TOKEN_VARIABLE, "")))
    os.setsid()
    # What the import logged is in a task's log, too.
    imported = os.pread(2, 1 << 20, 0)
    if imported:
        os.write(descriptors[2], imported)
    for standard, given in enumerate(descriptors):
        os.dup2(given, standard)
        os.close(given)
    os.chdir(task["cwd"])
    os.environ.clear()
    os.environ.update(task["env"])
    tempfile.tempdir = None  # that of the zygote's TMPDIR
    importlib.invalidate_caches()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator does this by itself


def _serve() -> dict[str, Any]:
    """Forks a task for each request. Returns only in a task, which is then to be run."""
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    token = _TokenInPlace()
    import tensorflow  # noqa: F401

    # A fork copies only the thread that calls it; what the others hold locked stays locked.
    if (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208
        sys.exit(f"the import of TensorFlow has left {threads} threads")
    connection.send(READY)
    own_pid = os.getpid()
    gc.collect()
    gc.freeze()  # so that a collection in a task does not copy these pages
    codes: dict[int, int] = {}  # an answer may have been missed, so it can be asked for again
    while True:
        packet, descriptors, _, _ = socket.recv_fds(connection, PACKET_BYTES, 3)
        if not packet:
            os._exit(0)
        request = json.loads(packet)
        answer: dict[str, Any] = {"id": request["id"]}
        if "reap" in request:
            task = request["reap"]
            if task not in codes:
                pid, status = os.waitpid(task, os.WNOHANG)
                if pid:
                    codes[task] = os.waitstatus_to_exitcode(status)
            answer["code"] = codes.get(task)
        else:
            said, say = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                    if os.getppid() != own_pid:
                        os._exit(1)
                    connection.close()
                    os.close(said)
                    _become(request["fork"], descriptors, token)
                except OSError as error:
                    os.write(say, str(error.errno).encode())
                    os._exit(1)
                os.close(say)
                return dict(request["fork"])
            os.close(say)
            for descriptor in descriptors:
                os.close(descriptor)
            failure = os.read(said, 100)
            os.close(said)
            if failure:
                os.waitpid(pid, 0)
                answer["errno"] = int(failure)
            else:
                codes.pop(pid, None)  # of an earlier process with this id
                answer["pid"] = pid
        try:
            connection.send(json.dumps(answer).encode())
        except OSError:  # the starter has ended
            os._exit(0)


def _run(task: dict[str, Any]) -> None:
    """Runs a script, a module or code as the interpreter would run it."""
    arguments = task["arguments"]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    main.__loader__ = importlib.machinery.BuiltinImporter
    sys.modules["__main__"] = main
    if (module := task.get("module")) is not None:
        sys.argv[:] = ["-m", *arguments]
        sys.orig_argv[:] = [sys.executable, "-m", module, *arguments]
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    elif (text := task.get("code")) is not None:
        sys.argv[:] = ["-c", *arguments]
        sys.orig_argv[:] = [sys.executable, "-c", text, *arguments]
        sys.path.insert(0, "")
        exec(compile(text, "<string>", "exec", dont_inherit=True), main.__dict__)
    else:
        script = task["script"]
        sys.argv[:] = [script, *arguments]
        sys.orig_argv[:] = [sys.executable, *sys.argv]
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))  # noqa: PTH120
        main.__file__ = script
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script)
        with io.open_code(os.path.abspath(script)) as file:  # noqa: PTH100
            code = compile(file.read(), script, "exec", dont_inherit=True)
        exec(code, main.__dict__)


if __name__ == "__main__":
    _run(_serve())
