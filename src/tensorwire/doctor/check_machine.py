"""The checks of this machine: what grpc++ needs, and what slows it down."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tensorwire import engine, settings
from tensorwire.doctor.evidence import Finding, checked
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.metrics import nic
from tensorwire.metrics.collect import usable_cores
from tensorwire.plugin import build, compiler

_FEW_FILES = 4096
"""A task needs a few descriptors for each peer, and one for each large tensor."""
_FEW_CORES = 2.0
_OPEN_TIMEOUT_S = 30.0


def machine() -> Iterator[Finding]:
    """Looks at this machine, one finding after the other."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _plugin,
        _memory_lane,
        _open_files,
        _cores,
        _security,
        _settings,
        _links,
    )
    for check in checks:
        yield from check()


def _plugin() -> Iterator[Finding]:
    try:
        found = build.inventory()
    except TensorwireError as error:
        yield checked("error", "TensorFlow", str(error))
        return
    tensorflow = found.tensorflow
    yield checked("ok", "TensorFlow", f"{tensorflow.version} in {tensorflow.library_folder}")
    if found.fitting is not None:
        yield checked("ok", "plug-in", "the package carries one for this TensorFlow")
        return
    if found.cached:
        yield checked("ok", "plug-in", f"compiled for this TensorFlow: {found.cached[0]}")
        return
    try:
        cxx = compiler.find_compiler()
    except TensorwireError as error:
        yield checked("error", "plug-in", f"there is none for this TensorFlow, and {error}")
        return
    yield checked(
        "warning",
        "plug-in",
        f"there is none for this TensorFlow yet; the first use compiles one with {cxx.version}",
        "run `tensorwire build` before the job, or in the image",
    )


def _memory_lane() -> Iterator[Finding]:
    """Checks shared memory: tasks of one host pass their memory files over Unix sockets."""
    directory = os.environ.get("TENSORWIRE_HOST_DIR", "")
    name = f"tensorwire-{os.getpid()}.new"
    path = str(Path(directory) / name) if directory else f"\0{name}"
    descriptor = os.memfd_create("tensorwire-check")
    try:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_OPEN_TIMEOUT_S)
            listener.bind(path)
            listener.listen()
            client.connect(path)
            with listener.accept()[0] as server:
                read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
                socket.send_fds(server, [b" "], [read_only])
                os.close(read_only)
            for passed in socket.recv_fds(client, 1, 1)[1]:
                os.close(passed)
    except OSError as error:
        yield checked(
            "warning",
            "memory between tasks",
            f"a file in memory cannot be passed over a Unix socket ({error}): tasks of this host"
            " use TCP",
            "mount /proc; if TENSORWIRE_HOST_DIR is set, name a directory that this user may"
            " write to, with a path of at most 75 characters",
        )
    else:
        text = "tasks of this user on this host can use it"
        yield checked("ok", "memory between tasks", text)
    finally:
        os.close(descriptor)
        if directory:
            with contextlib.suppress(OSError):
                Path(path).unlink()


def _open_files() -> Iterator[Finding]:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # a task raises the other one
    if limit == resource.RLIM_INFINITY or limit >= _FEW_FILES:
        yield checked("ok", "open files", f"limit {limit}")
        return
    yield checked(
        "warning",
        "open files",
        f"limit {limit}, which a ps with hundreds of workers exceeds",
        f"raise the hard limit to {_FEW_FILES} before the task starts (ulimit -Hn, as root)",
    )


def _cores() -> Iterator[Finding]:
    visible, cores = len(os.sched_getaffinity(0)), usable_cores()
    text = f"{visible}"
    if cores < visible:
        text = f"{cores:g} of {visible}, by the container's limit"
    memory = psutil.virtual_memory().available / 1e9
    text = f"{text}; {memory:.1f} GB of memory free"
    if cores >= _FEW_CORES:
        yield checked("ok", "cores", text)
        return
    yield checked(
        "warning",
        "cores",
        text,
        "give a task two cores or more: its communication threads and its computation share them",
    )


def _security() -> Iterator[Finding]:
    try:
        engine.check_security()
    except UsageError as error:
        yield checked("error", "token and TLS", str(error))
        return
    has_token = bool(os.environ.get("TENSORWIRE_TOKEN_FILE") or os.environ.get("TENSORWIRE_TOKEN"))
    text = "a token" if has_token else "no token: the data ports accept any client"
    if settings.is_on("TENSORWIRE_TLS"):
        text += ", and TLS"
    yield checked("ok", "token and TLS", text)


def _settings() -> Iterator[Finding]:
    for sentence in settings.misspelt(os.environ):
        yield checked("warning", "settings", sentence)


def _links() -> Iterator[Finding]:
    names = [name for name in nic.choose(()) if name != "lo"]
    speeds = {name: nic.nominal_mbit_per_s(name) for name in names}
    known = [f"{name} {speed:,} Mbit/s" for name, speed in speeds.items() if speed is not None]
    unknown = [name for name, speed in speeds.items() if speed is None]
    parts = known + ([f"{', '.join(unknown)}: speed unknown to the kernel"] if unknown else [])
    text = "; ".join(parts) or "only loopback"
    yield checked("ok", "network", text)
