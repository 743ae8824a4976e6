"""What `tensorwire check` finds: on this machine, and in a cluster as a peer on it sees it."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

import tensorwire
from tensorwire import engine, settings
from tensorwire.cluster import (
    ClusterSpec,
    Task,
    data_addresses,
    read_endpoint_map,
    split_address,
)
from tensorwire.doctor.evidence import Finding, checked
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.metrics import nic
from tensorwire.metrics.collect import usable_cores
from tensorwire.plugin import build, compiler
from tensorwire.units import data_size, number

_FEW_FILES = 4096
"""A task needs a few descriptors for each peer, and one for each large tensor."""
_FEW_CORES = 2.0
_OPEN_TIMEOUT_S = 30.0
_AT_ONCE = 64
_CLOCKS_S = 1.0
"""With a larger difference of clocks, logs and traces are hard to compare."""
_SLOW_LINK = 0.5
"""A link with less than this share of the median rate is a warning."""
_LINK_S = 0.2
_LINKS_S = 10.0
"""Limits of the time that data is sent: `_LINK_S` to one task, `_LINKS_S` to all together."""


def machine() -> Iterator[Finding]:
    """Looks at this machine, one finding after the other."""
    yield from _plugin()
    yield from _memory_lane()
    yield from _open_files()
    yield from _cores()
    yield from _security()
    yield from _settings()
    yield from _interfaces()


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
        yield checked("ok", "memory between tasks", "tasks of this user on this host can use it")
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
    text = f"{visible}" if cores >= visible else f"{cores:g} of {visible}, by the container's limit"
    text += f"; {psutil.virtual_memory().available / 1e9:.1f} GB of memory free"
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


def _interfaces() -> Iterator[Finding]:
    names = [name for name in nic.choose(()) if name != "lo"]
    speeds = {name: nic.nominal_mbit_per_s(name) for name in names}
    known = [f"{name} {speed:,} Mbit/s" for name, speed in speeds.items() if speed is not None]
    unknown = [name for name, speed in speeds.items() if speed is None]
    parts = known + ([f"{', '.join(unknown)}: speed unknown to the kernel"] if unknown else [])
    yield checked("ok", "network", "; ".join(parts) or "only loopback")


@dataclass(frozen=True)
class _Answer:
    """A task that answers."""

    name: str
    reached: engine.Reached
    on_this_host: bool
    reach: Callable[[float], engine.Reached]
    """Greets it again, and sends data for so many seconds."""


def tasks(cluster: ClusterSpec, timeout_s: float, map_path: Path) -> Iterator[Finding]:
    """Greets the tasks in parallel; yields a finding per task in order, then those about all.

    Args:
        map_path: the `.endpoint_map`; the file need not exist.

    Raises:
        UsageError: the map is wrong.
    """
    mapped = read_endpoint_map(map_path) if map_path.exists() else {}
    named = list(cluster.tasks())

    def check_task(one: tuple[Task, str]) -> tuple[Finding, _Answer | None]:
        task, address = one
        if address in mapped:
            return _check_task(task, address, [mapped[address]], f"from {map_path}", timeout_s)
        by_rule = data_addresses(address)
        return _check_task(task, address, by_rule, "derived from its gRPC port", timeout_s)

    answers = []
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, max(1, len(named)))) as pool:
        for finding, answer in pool.map(check_task, named):
            yield finding
            answers += [answer] if answer is not None else []
    if answers:
        yield _versions(answers)
        yield _clocks(answers)
        yield _links(answers)


def _check_task(
    task: Task, grpc: str, data: Sequence[str], origin: str, timeout_s: float
) -> tuple[Finding, _Answer | None]:
    name, peer = f"{task.job}:{task.index}", f"/job:{task.job}/replica:0/task:{task.index}"
    on_this_host, error = _connect(grpc, timeout_s)
    if error:
        text = f"no server at {grpc}: {error}"
        if task.job == "evaluator":
            advice = (
                "take it out of the cluster: an evaluator serves nobody, and a session without "
                "device filters waits for it for ever"
            )
            return checked("warning", name, text, advice), None
        advice = "start the task, or check its address, and that its port is open between the hosts"
        return checked("error", name, text, advice), None
    second_port = split_address(data[1])[1] if len(data) > 1 else None
    reach = partial(engine.reach, data[0], second_port, peer, timeout_s)
    try:
        reached = reach()
    except UsageError as words:
        return _not_reached(name, grpc, data, origin, str(words)), None
    text = (
        f"{grpc} and its data port {' or '.join(data)} answer, in {1e3 * reached.round_trip_s:.1f} "
        f"ms; it is {peer} and accepts this host"
    )
    return checked("ok", name, text), _Answer(name, reached, on_this_host, reach)


def _not_reached(name: str, grpc: str, data: Sequence[str], origin: str, words: str) -> Finding:
    _, unreachable, why = words.rpartition("failed to connect to all addresses; last error: ")
    where = f"its data port {' or '.join(data)} ({origin})"
    if unreachable or "the deadline passed" in words:
        return checked(
            "error",
            name,
            f"its gRPC port {grpc} answers, but {where} does not: {why if unreachable else words}",
            'start its server with protocol="grpc++", and open the port between the hosts',
        )
    return checked(
        "error",
        name,
        f"{where} refuses this host: {words}",
        "run this command with the environment of a task (TENSORWIRE_TOKEN_FILE, TENSORWIRE_TLS), "
        "and compare cluster spec, .endpoint_map and tensorwire's version",
    )


def _versions(answers: Sequence[_Answer]) -> Finding:
    here = tensorwire.__version__
    others = [
        f"{each.name} has {each.reached.version or 'an older one'}"
        for each in answers
        if each.reached.version != here
    ]
    if not others:
        return checked("ok", "versions", f"all tasks that answer have tensorwire {here}, too")
    return checked(
        "warning",
        "versions",
        f"this host has tensorwire {here}; {', '.join(others)}",
        "install the same version for all tasks: different versions are not tested together",
    )


def _clocks(answers: Sequence[_Answer]) -> Finding:
    known = [(each.name, each.reached) for each in answers if each.reached.version]
    if not known:
        return checked("warning", "clocks", "no task reports its clock")
    name, worst = max(known, key=lambda each: abs(each[1].clock_ahead_s))
    word = "ahead of" if worst.clock_ahead_s > 0 else "behind"
    text = (
        f"the clock of {name} is {number(abs(worst.clock_ahead_s))} s {word} this host's "
        f"(+- {number(worst.round_trip_s / 2)} s); all others differ less"
    )
    if abs(worst.clock_ahead_s) <= _CLOCKS_S:
        return checked("ok", "clocks", text)
    advice = "let NTP or chrony set the hosts' clocks: times in logs and traces cannot be compared"
    return checked("warning", "clocks", text, advice)


def _links(answers: Sequence[_Answer]) -> Finding:
    """Measures one task at a time, because parallel transfers would share this host's link."""
    others = [each for each in answers if not each.on_this_host]
    if not others:
        return checked("ok", "links", "not measured: all tasks that answer are on this host")
    rates: dict[str, float] = {}
    rate_s = min(_LINK_S, _LINKS_S / len(others))
    try:
        for each in others:
            rates[each.name] = each.reach(rate_s).bytes_per_s
    except UsageError as words:
        advice = "run this command again; if it fails again, check the network"
        return checked("error", "links", f"{each.name} was lost: {words}", advice)
    middle = statistics.median(rates.values())
    slowest = min(rates, key=lambda name: rates[name])
    text = (
        f"over one connection, the median rate from here is {data_size(middle)}/s, the lowest is "
        f"{data_size(rates[slowest])}/s, to {slowest}"
    )
    if rates[slowest] >= _SLOW_LINK * middle:
        return checked("ok", "links", text)
    advice = (
        "measure both hosts' links with `tensorwire bench tcp`: the slowest link limits the job"
    )
    return checked("warning", "links", text, advice)


def _connect(address: str, timeout_s: float) -> tuple[bool, str]:
    """Whether `address` is on this host, and why it cannot be reached ("" if it can)."""
    try:
        with socket.create_connection(split_address(address), timeout_s) as connection:
            return connection.getsockname()[0] == connection.getpeername()[0], ""
    except TimeoutError:
        return False, f"no answer within {timeout_s:g} s"
    except OSError as error:
        return False, error.strerror or str(error)
