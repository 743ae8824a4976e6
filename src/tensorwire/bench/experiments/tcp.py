"""`bench tcp`: raw TCP, the upper limit of all layers above, and the baselines of others.

Measures one and several streams, with our own program (native/raw/tcp.cc) and with iperf3 if it is
installed. A stream sends one buffer repeatedly, and its receiver reads into one buffer, as iperf3
does. Our program sends a block of buffers and waits until all of it is received; iperf3 reports
the received bytes.

Every page of a buffer is written before use, so steps have no page faults. Sockets keep the
kernel's default buffer sizes.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from tensorwire.bench.experiments.raw import CONNECT_TIMEOUT_S, Buffer, RawTcp
from tensorwire.bench.experiments.tensors import Tensors
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.columns import Column
from tensorwire.bench.frame.experiment import (
    Case,
    Experiment,
    Variant,
    rounds_option,
)
from tensorwire.bench.frame.hosts import HostPool
from tensorwire.bench.frame.options import experiment_command
from tensorwire.bench.frame.record import Record, Result, words
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.tasks import HostedTask, TaskProcesses, Watcher, patience_s, request
from tensorwire.bench.lab import LocalCluster
from tensorwire.bench.lab.channel import Message
from tensorwire.bench.lab.ports import listen, listening_ports
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.report.section import Section
from tensorwire.settings import address_text

OURS = "tcp"
IPERF3 = "iperf3"
MOST_STREAMS = 256
MOST_BYTES = 4 << 30
LARGEST_BUFFER_BYTES = 1_000_000_000
"""A larger buffer has the same rate, because it does not fit into any cache either."""
COPIES = 4
"""The number of buffers that all baselines together allocate."""
_MOST_OF_IPERF3_BYTES = 1 << 20
_WARM_UP_S = 0.1
_SLACK_S = 30.0


class TcpTask(HostedTask):
    """A sender or a receiver."""

    def __init__(self, message_size: int) -> None:
        self._message_size = message_size
        self._tcp = RawTcp()
        self._streams: list[socket.socket] = []
        self._buffers: list[Buffer] = []

    @request
    def receive(self, host: str, port: int) -> Message:
        """Listens on a port. Every stream that connects is received to its end."""
        server = listen(address_text(host, port))
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return {}

    def _accept(self, server: socket.socket) -> None:
        with server:
            while True:
                stream, _ = server.accept()
                threading.Thread(target=self._receive, args=(stream,), daemon=True).start()

    def _receive(self, stream: socket.socket) -> None:
        with stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._tcp.receive(stream.fileno(), self._buffer(1))

    def _buffer(self, value: int) -> Buffer:
        return np.full(self._message_size, value, dtype=np.uint8)

    @request
    def connect(self, host: str, port: int, streams: int) -> Message:
        for _ in range(streams):
            try:
                stream = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
            except OSError as error:
                raise TensorwireError(
                    f"cannot connect to {host}:{port}: {error.strerror or error}"
                ) from error
            stream.settimeout(None)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams.append(stream)
            self._buffers.append(self._buffer(2))
        return {}

    @request
    def run(self, iters: int, messages: int) -> Message:
        """Sends blocks of `messages` on each stream; the receiver acknowledges each full block."""
        descriptors = [stream.fileno() for stream in self._streams]
        return {
            "step_s": [self._tcp.send(descriptors, self._buffers, messages) for _ in range(iters)]
        }


class MemcpyTask(HostedTask):
    """A task that copies one buffer to another."""

    def __init__(self, message_size: int) -> None:
        self._copied = np.full(message_size, 2, dtype=np.uint8)
        self._copy = np.full(message_size, 3, dtype=np.uint8)

    @request
    def run(self, iters: int) -> Message:
        times = []
        gc.disable()
        try:
            for _ in range(iters):
                begin = time.perf_counter()
                np.copyto(self._copy, self._copied)
                times.append(time.perf_counter() - begin)
        finally:
            gc.enable()
        return {"step_s": times}


class Iperf3Task(HostedTask):
    """The server of iperf3, at any host."""

    @request
    def serve(self, port: int) -> Message:
        """Makes it listen; says if it is installed."""
        if not iperf3_is_installed():
            return {"is_installed": False}
        server = subprocess.Popen([IPERF3, "--server", "--port", str(port)], stdout=2)
        deadline = time.monotonic() + _SLACK_S
        while port not in listening_ports(os.getpid()):
            if server.poll() is not None or time.monotonic() > deadline:
                raise TensorwireError(f"iperf3 does not listen on port {port}")
            time.sleep(0.05)
        return {"is_installed": True}


def iperf3_is_installed() -> bool:
    return shutil.which(IPERF3) is not None


@dataclass(frozen=True)
class TcpResult(Result):
    """`bench tcp`: a number of parallel raw TCP streams."""

    commands = ("bench tcp",)
    more_rounds_by = "--rounds"
    figure = "mb_per_s"
    subject = "program"
    group_header = "streams"
    name = words("{0.implementation}")
    title = words("Raw TCP, {0.message_size} bytes at a time")
    group = words("{0.streams}")
    of = words("Raw TCP, streams: {0.streams}")

    implementation: str
    """"tcp", tensorwire's own streams, or "iperf3 3.12"."""
    streams: int
    message_size: int
    """Bytes of the buffer that each stream sends repeatedly, and receives into."""
    mb_per_s: Annotated[float, Column("MB/s", "MB/s", chart="Rate, MB = 10^6 bytes; streams")]
    """The rate of all streams together."""

    @classmethod
    def section(cls, record: Record[Any]) -> Section:
        notes = []
        if all(r.implementation == OURS for r in record.results):
            notes.append("iperf3 was not measured: it is not installed (apt-get install iperf3)")
        elif record.results[0].message_size > _MOST_OF_IPERF3_BYTES:
            notes.append("iperf3 sent 1 MiB at a time, which is its limit")
        return dataclasses.replace(super().section(record), notes=notes)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--streams {text}: give numbers, as in 1,4") from None


class _Raw(TaskProcesses, Variant[Any, Any]):
    """A program that moves buffers: one of `bench tcp`, or a baseline in the case `at`."""

    implementation: str

    def __init__(
        self, cluster: LocalCluster, plan: Tcp, streams: int = 1, at: Tensors | None = None
    ) -> None:
        super().__init__(cluster)
        self.name = _name(self.implementation.split()[0], streams)
        self.plan = plan
        self.streams = streams
        self._at = at

    def takes_part(self, what: Tensors | None) -> bool:
        return what == self._at

    def rates(self, mb: float, seconds: Sequence[float]) -> list[float]:
        """Seconds for a MB (10^6 bytes) or for a baseline's tensors, from those for `mb` MB."""
        wanted_mb = 1.0 if self._at is None else self._at.data_mb
        return [wanted_mb / mb * each for each in seconds]

    def result(self, case: Case[Any], rounds: Rounds) -> TcpResult | None:
        if self._at is not None:
            return None
        rate = 1 / statistics.typical_s(rounds)
        return TcpResult(self.implementation, self.streams, self.plan.message_size, rate)

    def baseline_mb_per_s(self, case: Case[Any], rounds: Rounds) -> float | None:
        return None if self._at is None else self._at.data_mb / statistics.typical_s(rounds)


class OurStreams(_Raw):
    """A sender and a receiver of our own program."""

    implementation = OURS

    def __init__(
        self, hosts: HostPool, plan: Tcp, streams: int = 1, at: Tensors | None = None
    ) -> None:
        super().__init__(hosts.cluster({"receiver": 1, "sender": 1}), plan, streams, at)
        self._messages = 1

    def start(self) -> None:
        for job in ("receiver", "sender"):
            self.start_task(job, TcpTask, message_size=self.plan.message_size)

    def wait_started(self, watcher: Watcher) -> None:
        super().wait_started(watcher)
        # On another machine, the known address may not be one of its own addresses (NAT).
        host, port = split_address(self.address("receiver"))
        listens_at = host if self.cluster.is_on_this_machine else ""
        self.ask("receiver", "receive", host=listens_at, port=port)
        self.ask("sender", "connect", host=host, port=port, streams=self.streams)

    def warm_up(self, what: Any) -> None:
        """Determines the number of messages that fill the wanted time."""
        messages = 1
        while (seconds := self._send_s(1, messages)[0]) < _WARM_UP_S:
            messages *= 2 if seconds > _WARM_UP_S / 10 else 8
        self._messages = max(1, round(messages * self.plan.seconds / seconds))

    def block(self, what: Any, steps: int | None) -> list[float]:
        """Sends for the wanted time, or this number of buffers, each a step."""
        messages = self._messages if steps is None else 1
        moved_mb = self.streams * messages * self.plan.message_size / 1e6
        if steps is not None:
            self._send_s(1, 1)
        return self.rates(moved_mb, self._send_s(steps or 1, messages))

    def _send_s(self, iters: int, messages: int) -> list[float]:
        """Seconds of each of `iters` blocks of `messages` on each stream."""
        moved_bytes = iters * messages * self.plan.message_size * self.streams
        timeout_s = patience_s(steps=self.plan.seconds, moved_bytes=moved_bytes)
        block = {"iters": iters, "messages": messages}
        return [float(each) for each in self.ask("sender", "run", timeout_s, **block)["step_s"]]


class Memcpy(_Raw):
    """Copies one buffer to another one of the same process."""

    implementation = "memcpy"

    def __init__(self, hosts: HostPool, plan: Tcp, streams: int, at: Tensors) -> None:
        super().__init__(hosts.cluster({"copier": 1}), plan, streams, at)

    def start(self) -> None:
        self.start_task("copier", MemcpyTask, message_size=self.plan.message_size)

    def block(self, what: Any, steps: int | None) -> list[float]:
        for count in (1, steps or 1):
            copied = self.ask("copier", "run", iters=count)
        return self.rates(self.plan.message_size / 1e6, copied["step_s"])


class Iperf3(_Raw):
    """iperf3: a server at one end; each measurement starts a client at the other end."""

    def __init__(
        self, hosts: HostPool, plan: Tcp, streams: int = 1, at: Tensors | None = None
    ) -> None:
        told = subprocess.run([IPERF3, "--version"], capture_output=True, text=True, check=False)
        self.implementation = " ".join([IPERF3, *told.stdout.split()[1:2]])
        super().__init__(hosts.cluster({"server": 1, "client": 1}), plan, streams, at)

    def start(self) -> None:
        self.start_task("server", Iperf3Task)

    def wait_started(self, watcher: Watcher) -> None:
        super().wait_started(watcher)
        port = split_address(self.address("server"))[1]
        self._is_installed = bool(self.ask("server", "serve", port=port)["is_installed"])

    def takes_part(self, what: Tensors | None) -> bool:
        return self._is_installed and super().takes_part(what)

    def block(self, what: Any, steps: int | None) -> list[float]:
        """Runs for the wanted time; iperf3 reports what was received, over all streams."""
        host, port = split_address(self.address("server"))
        size = min(self.plan.message_size, _MOST_OF_IPERF3_BYTES)
        argv = [IPERF3, "--client", host, "--port", str(port), "--json", "--length", str(size)]
        argv += ["--time", str(self.plan.seconds), "--parallel", str(self.streams)]
        output = self.cluster.directory / "client.json"
        client = self.cluster.start("client", 0, argv, stdout=output)
        self.cluster.wait([client], self.plan.seconds + _SLACK_S)
        try:
            received = json.loads(output.read_text())["end"]["sum_received"]
            return self.rates(float(received["bits_per_second"]) / 8e6, [1.0])
        except (ValueError, KeyError) as error:
            raise TensorwireError(f"unexpected output of iperf3: {error!r}") from error


def _name(program: str, streams: int) -> str:
    """The name in tables and ratios: "tcp", "iperf3 x4"."""
    return program if streams == 1 else f"{program} x{streams}"


@dataclass(frozen=True, kw_only=True)
class Tcp(Experiment[None, TcpResult]):
    """Measure raw TCP, the upper limit: one and several streams, and iperf3 where installed.

    MB are 10^6 bytes.
    """

    command = "bench tcp"
    takes = frozenset({"lab"})

    streams: tuple[int, ...] = option(
        (1, 4),
        "Numbers of parallel streams; each is measured.",
        metavar="LIST",
        default_text="1,4",
        parse=_numbers,
    )
    message_size: int = option(128 << 10, "Bytes of the buffer that a stream sends repeatedly.")
    seconds: int = option(1, "Seconds per measurement and round.", least=1)
    rounds: int = rounds_option(5)

    def __post_init__(self) -> None:
        if not self.streams or not all(1 <= count <= MOST_STREAMS for count in self.streams):
            raise UsageError(f"--streams takes numbers from 1 to {MOST_STREAMS}, as in 1,4")
        if len(set(self.streams)) != len(self.streams):
            raise UsageError("--streams names a number twice")
        if not 1 <= self.message_size * max(self.streams) <= MOST_BYTES:
            raise UsageError(
                f"--message-size {self.message_size}: give bytes from 1 to "
                f"{MOST_BYTES // max(self.streams)}, for {max(self.streams)} streams"
            )

    @property
    def cases(self) -> list[Case[None]]:
        return [Case("streams", None, [None] * self.rounds)]

    def variants(self, hosts: HostPool) -> Sequence[Variant[None, TcpResult]]:
        programs = [OurStreams, *([Iperf3] if iperf3_is_installed() else [])]
        return [program(hosts, self, n) for n in self.streams for program in programs]

    def pairs(self, names: Sequence[str], hosts: HostPool) -> Sequence[tuple[str, str]]:
        programs = [(_name(OURS, n), _name(IPERF3, n)) for n in self.streams]
        return [*programs, *((_name(OURS, n), OURS) for n in self.streams if n != 1)]


def baselines(at: Tensors, hosts: HostPool) -> list[Variant[Tensors, Any]]:
    """Programs that move one buffer in the case `at`, as far as they are possible on these hosts.

    They move the bytes of `bench transfer` without TensorFlow: one raw TCP stream and, within this
    machine, one memcpy of a buffer of the same size. Over a link, which is slower than memory,
    iperf3 replaces memcpy if it is installed.
    """
    plan = Tcp(streams=(1,), message_size=min(round(at.data_mb * 1e6), LARGEST_BUFFER_BYTES))
    possible: list[Variant[Tensors, Any]] = [OurStreams(hosts, plan, 1, at)]
    if not hosts.have_link:
        possible.append(Memcpy(hosts, plan, 1, at))
    elif hosts.is_this_machine and iperf3_is_installed():
        possible.append(Iperf3(hosts, plan, 1, at))
    return possible


def baseline_pairs(names: Sequence[str], hosts: HostPool) -> list[tuple[str, str]]:
    """The pairs (variant, baseline) to compare.

    Within one machine, stock grpc is compared only if no variant of tensorwire takes part.
    """
    raw = [name for name in names if name in (OURS, "memcpy", IPERF3)]
    others = [name for name in names if name not in raw]
    ours = [name for name in others if name != "grpc"]
    compared = others if hosts.have_link else ours or others
    return [(name, baseline) for name in compared for baseline in raw]


command = experiment_command(
    Tcp,
    """
  tensorwire bench tcp
  tensorwire bench tcp --streams 1,2,8 --message-size 1048576 --json tcp.json
  tensorwire bench tcp --job server
  tensorwire bench tcp --job client --target host1:12222""",
    tasks="ends",
)
