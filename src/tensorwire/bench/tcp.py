"""`bench tcp`: the ceiling of everything above it. One and several raw TCP streams, our own
(native/raw/tcp.cc), and iperf3's beside them where it is installed.

A stream sends one buffer over and over, and its receiver reads into one, as iperf3 does. Ours sends
a block of so many buffers and waits until all of it is there; what iperf3 says is what arrived.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwire.bench.iperf3 import IPERF3, Iperf3Side
from tensorwire.bench.iperf3 import is_installed as iperf3_is_installed
from tensorwire.bench.iperf3 import version as iperf3_version
from tensorwire.bench.raw_processes import (
    CLIENT,
    SERVER,
    End,
    RawProcesses,
    RemoteEnd,
    Target,
    port_of,
    remote_server,
    serve_remote,
)
from tensorwire.cluster import split_address
from tensorwire.errors import UsageError
from tensorwire.lab.channel import Message
from tensorwire.measure import statistics
from tensorwire.measure.comparison import compare
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.noise import NoiseWatch
from tensorwire.measure.record import Metric, Record, Result
from tensorwire.measure.section import Bar, Bars, Section, Table
from tensorwire.measure.tasks import Watcher
from tensorwire.units import number


@dataclass(frozen=True)
class TcpResult(Result):
    """`bench tcp`: so many raw TCP streams at once."""

    commands = ("bench tcp",)
    more_rounds_by = "--rounds"

    implementation: str
    """"tcp", tensorwire's own streams, or "iperf3 3.12"."""
    streams: int
    message_size: int
    """Bytes of the buffer that each stream sends over and over, and receives into."""
    mb_per_s: float
    """Of all streams together."""

    @property
    def metric(self) -> Metric:
        return Metric(
            f"Raw TCP, streams: {self.streams}", self.implementation, self.mb_per_s, "MB/s"
        )

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


COMMAND = "bench tcp"
OURS = "tcp"
MOST_STREAMS = 256
MOST_BYTES = 4 << 30
_WARM_UP_S = 0.1
_SLOWEST_BYTES_PER_S = 1e6
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class TcpPlan:
    """One call of `bench tcp`."""

    streams: tuple[int, ...] = (1, 4)
    message_size: int = 128 << 10
    """Bytes of each stream's buffer."""
    seconds: int = 1
    """Of each measurement in each round."""
    rounds: int = 5

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be measured."""
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
    def blocks(self) -> int:
        """How often the watcher is advanced."""
        return self.rounds


def side_name(program: str, streams: int) -> str:
    """As tables and ratios call it: "tcp", "iperf3 x4"."""
    return program if streams == 1 else f"{program} x{streams}"


class TcpSide:
    """Our own streams between two ends."""

    def __init__(self, server: End, client: End, plan: TcpPlan) -> None:
        self._server = server
        self._client = client
        self._plan = plan
        self._messages: dict[int, int] = {}

    def connect(self, server_at: str, address: str) -> None:
        """Makes the receiver listen at the host `server_at`; the sender connects to `address`."""
        host, port = split_address(address)
        self._server.ask({"do": "receive", "host": server_at, "port": port})
        streams = max(self._plan.streams)
        self._client.ask({"do": "connect", "host": host, "port": port, "streams": streams})

    def warm_up(self, streams: int) -> None:
        """Finds how many messages a measurement takes."""
        messages = 1
        while (seconds := self._send(streams, messages)) < _WARM_UP_S:
            messages *= 2 if seconds > _WARM_UP_S / 10 else 8
        self._messages[streams] = max(1, round(messages * self._plan.seconds / seconds))

    def mb_per_s(self, streams: int) -> float:
        """MB (10^6 bytes) that arrived each second, over all streams."""
        messages = self._messages[streams]
        seconds = self._send(streams, messages)
        return streams * messages * self._plan.message_size / seconds / 1e6

    def _send(self, streams: int, messages: int) -> float:
        block_bytes = streams * messages * self._plan.message_size
        message = {"do": "tcp", "iters": 1, "streams": streams, "messages": messages}
        reply = self._client.ask(message, _PATIENCE_S + block_bytes / _SLOWEST_BYTES_PER_S)
        return float(reply["step_s"][0])


def _setup(plan: TcpPlan) -> Message:
    return {"part": "tcp", "message_size": plan.message_size}


def run(plan: TcpPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE) -> Record[TcpResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        setups = {SERVER: _setup(plan), CLIENT: _setup(plan)}
        processes = stack.enter_context(RawProcesses(setups, host_pool))
        iperf3 = None
        if iperf3_is_installed():
            iperf3 = stack.enter_context(Iperf3Side(host_pool))
        processes.wait_started(watcher)
        side = TcpSide(processes.end(SERVER), processes.end(CLIENT), plan)
        address = processes.address(SERVER)
        side.connect(split_address(address)[0], address)
        return dataclasses.replace(_measure(plan, side, iperf3, watcher), lab=host_pool.document)


def measure_remote(plan: TcpPlan, target: Target, watcher: Watcher) -> Record[TcpResult]:
    """Measures against the receiver of another host.

    Raises:
        TensorwireError: it did not come in time, has another version, or an end failed.
    """
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the task")
        client = stack.enter_context(RawProcesses({CLIENT: _setup(plan)}))
        client.wait_started(watcher)
        wants = {"setup": _setup(plan), IPERF3: iperf3_is_installed()}
        answer, peer = stack.enter_context(remote_server(COMMAND, target, wants, watcher))
        iperf3 = None
        if answer[IPERF3]:
            host, port = split_address(target.address)
            address = f"[{host}]:{port_of(IPERF3, port)}"
            iperf3 = stack.enter_context(Iperf3Side(parts=(CLIENT,), address=address))
        side = TcpSide(RemoteEnd(peer, SERVER), client.end(CLIENT), plan)
        side.connect("", target.address)
        return _measure(plan, side, iperf3, watcher)


def serve(port: int, peer_timeout_s: float, watcher: Watcher) -> None:
    """The receiver for another host's sender, at `port`; iperf3's is at data_port(port).

    Raises:
        TensorwireError: no sender came in time, it went too early, or the receiver failed.
    """
    with contextlib.ExitStack() as stack:

        def start(wants: Message) -> tuple[Message, Mapping[str, End]]:
            both = bool(wants[IPERF3]) and iperf3_is_installed()
            if both:
                address = f"localhost:{port_of(IPERF3, port)}"
                stack.enter_context(Iperf3Side(parts=(SERVER,), address=address))
            server = stack.enter_context(RawProcesses({SERVER: wants["setup"]}))
            server.wait_started(watcher)
            return {IPERF3: both}, {SERVER: server.end(SERVER)}

        serve_remote(COMMAND, port, peer_timeout_s, start, watcher)


def _measure(
    plan: TcpPlan, side: TcpSide, iperf3: Iperf3Side | None, watcher: Watcher
) -> Record[TcpResult]:
    noise = NoiseWatch()
    watcher.activity("warming up")
    for streams in plan.streams:
        side.warm_up(streams)
    watcher.activity("measuring")
    seconds_a_mb: dict[tuple[str, int], list[list[float]]] = {}
    for _ in range(plan.rounds):
        for streams in plan.streams:
            ours = side.mb_per_s(streams)
            seconds_a_mb.setdefault((OURS, streams), []).append([1 / ours])
            if iperf3 is not None:
                theirs = iperf3.mb_per_s(plan.seconds, streams, plan.message_size)
                seconds_a_mb.setdefault((IPERF3, streams), []).append([1 / theirs])
        watcher.advance()
    results = [
        TcpResult(
            implementation=program if program == OURS else f"{program} {iperf3_version()}",
            streams=streams,
            message_size=plan.message_size,
            mb_per_s=1 / statistics.typical_s(rounds),
        )
        for (program, streams), rounds in seconds_a_mb.items()
    ]
    rounds = {side_name(*key): each for key, each in seconds_a_mb.items()}
    pairs = [(side_name(OURS, n), side_name(IPERF3, n)) for n in plan.streams]
    pairs += [(side_name(OURS, n), OURS) for n in plan.streams if n != 1]
    return Record(
        COMMAND,
        tensorflow=None,
        results=results,
        ratios=compare(rounds, pairs),
        noise=noise.seen(rounds),
    )


_MOST_OF_IPERF3_BYTES = 1 << 20


def _section(record: Record[TcpResult]) -> Section:
    message_size = record.results[0].message_size
    by_streams: dict[int, list[TcpResult]] = {}
    for result in record.results:
        by_streams.setdefault(result.streams, []).append(result)
    names = {"tcp": "tcp (ours)"}
    table = Table(
        f"Raw TCP, {message_size} bytes at a time (MB = 10^6 bytes)",
        ["program", "streams", "MB/s"],
        [
            [
                [names.get(r.implementation, r.implementation), str(r.streams), number(r.mb_per_s)]
                for r in rows
            ]
            for rows in by_streams.values()
        ],
    )
    charts = [
        Bars(
            "Rate, MB = 10^6 bytes",
            "MB/s",
            [
                Bar(f"{r.implementation}, {r.streams}", r.mb_per_s, r.implementation)
                for rows in by_streams.values()
                for r in rows
            ],
            "The number after a name is that of its streams.",
        )
    ]
    notes = []
    if all(r.implementation == "tcp" for r in record.results):
        notes.append("iperf3 took no part: it was not installed (apt-get install iperf3)")
    elif message_size > _MOST_OF_IPERF3_BYTES:
        notes.append("iperf3 sent 1 MiB at a time, the most that it does")
    return Section("Raw TCP", charts=charts, tables=[table], notes=notes)
