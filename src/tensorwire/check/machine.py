"""The checks of this machine: what grpc++ needs, and what slows it down."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tensorwire import engine
from tensorwire.check.finding import Finding
from tensorwire.errors import TensorwireError
from tensorwire.metrics import nic
from tensorwire.plugin import build, compiler, settings

_FEW_FILES = 4096
"""A task needs a few descriptors for each peer, and one for each large tensor."""
_FEW_CORES = 2.0
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
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
        yield Finding("error", "TensorFlow", str(error))
        return
    tensorflow = found.tensorflow
    yield Finding("ok", "TensorFlow", f"{tensorflow.version} in {tensorflow.library_folder}")
    if found.fitting is not None:
        yield Finding("ok", "plug-in", "the package carries one for this TensorFlow")
        return
    if found.cached:
        yield Finding("ok", "plug-in", f"compiled for this TensorFlow: {found.cached[0]}")
        return
    try:
        cxx = compiler.find_compiler()
    except TensorwireError as error:
        yield Finding("error", "plug-in", f"there is none for this TensorFlow, and {error}")
        return
    yield Finding(
        "warning",
        "plug-in",
        f"there is none for this TensorFlow yet; the first use compiles one with {cxx.version}",
        "run `tensorwire build` before the job, or in the image",
    )


def _memory_lane() -> Iterator[Finding]:
    """Checks shared memory: tasks of one host open each other's memory files through /proc."""
    descriptor = os.memfd_create("tensorwire-check")
    try:
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        read = [sys.executable, "-I", "-S", "-c", f"open({path!r}, 'rb').close()"]
        done = subprocess.run(
            read, capture_output=True, text=True, timeout=_OPEN_TIMEOUT_S, check=False
        )
    finally:
        os.close(descriptor)
    if done.returncode == 0:
        text = "tasks of this user on this host can use it"
        yield Finding("ok", "memory between tasks", text)
        return
    why = (done.stderr.strip().splitlines() or ["unknown error"])[-1]
    yield Finding(
        "warning",
        "memory between tasks",
        f"one process cannot open another's descriptor ({why}): tasks of this host use TCP",
        "let tasks run as one user and share a PID namespace, with /proc mounted",
    )


def _open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FEW_FILES:
        yield Finding("ok", "open files", f"limit {soft}")
        return
    limit = "unlimited" if hard == resource.RLIM_INFINITY else hard
    yield Finding(
        "warning",
        "open files",
        f"limit {soft}, which a ps with hundreds of workers exceeds",
        f"ulimit -n {_FEW_FILES} before the task starts (the hard limit is {limit})",
    )


def _cores() -> Iterator[Finding]:
    cores: float = len(os.sched_getaffinity(0))
    text = f"{cores:.0f}"
    limit = _container_cores()
    if limit is not None and limit < cores:
        cores = limit
        text = f"{limit:g} of {text}, by the container's limit"
    memory = psutil.virtual_memory().available / 1e9
    text = f"{text}; {memory:.1f} GB of memory free"
    if cores >= _FEW_CORES:
        yield Finding("ok", "cores", text)
        return
    yield Finding(
        "warning",
        "cores",
        text,
        "give a task two cores or more: with fewer its communication threads sleep instead of poll",
    )


def _container_cores() -> float | None:
    """The cores that the control group of this process may use; None if no limit is known."""
    try:
        quota, period = _CPU_MAX.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _security() -> Iterator[Finding]:
    try:
        engine.check_security()
    except ValueError as error:
        yield Finding("error", "token and TLS", str(error))
        return
    has_token = bool(os.environ.get("TENSORWIRE_TOKEN_FILE") or os.environ.get("TENSORWIRE_TOKEN"))
    has_tls = os.environ.get("TENSORWIRE_TLS", "0") not in ("", "0")
    text = "a token" if has_token else "no token: the data ports accept any client"
    if has_tls:
        text += ", and TLS"
    yield Finding("ok", "token and TLS", text)


def _settings() -> Iterator[Finding]:
    for sentence in settings.misspelt(os.environ):
        yield Finding("warning", "settings", sentence)


def _links() -> Iterator[Finding]:
    names = [name for name in nic.choose(()) if name != "lo"]
    speeds = {name: nic.nominal_mbit_per_s(name) for name in names}
    known = [f"{name} {speed:,} Mbit/s" for name, speed in speeds.items() if speed is not None]
    unknown = [name for name, speed in speeds.items() if speed is None]
    parts = known + ([f"{', '.join(unknown)}: speed unknown to the kernel"] if unknown else [])
    text = "; ".join(parts) or "only loopback"
    yield Finding("ok", "network", text)
