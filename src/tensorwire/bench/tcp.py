"""`bench tcp`: raw TCP, the upper limit of all layers above.

Measures one and several streams, with our own program (native/raw/tcp.cc) and with iperf3 if it is
installed. A stream sends one buffer repeatedly, and its receiver reads into one buffer, as iperf3
does. Our program sends a block of buffers and waits until all of it is received; iperf3 reports
the received bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwire.bench.ceilings import IPERF3, Iperf3
from tensorwire.bench.ceilings import is_installed as iperf3_is_installed
from tensorwire.bench.ceilings import version as iperf3_version
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
from tensorwire.bench.raw_task import TcpTask
from tensorwire.cluster import split_address
from tensorwire.errors import UsageError
from tensorwire.lab.channel import Message
from tensorwire.measure import statistics
from tensorwire.measure.experiment import Case, Side, measure
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.record import LabDocument, Metric, Record, Result
from tensorwire.measure.section import Bar, Bars, Section, Table
from tensorwire.measure.statistics import Rounds
from tensorwire.measure.task_processes import Watcher
from tensorwire.units import number

COMMAND = "bench tcp"
OURS = "tcp"
MOST_STREAMS = 256
MOST_BYTES = 4 << 30
_WARM_UP_S = 0.1
_SLOWEST_BYTES_PER_S = 1e6
_PATIENCE_S = 60.0
_MOST_OF_IPERF3_BYTES = 1 << 20


@dataclass(frozen=True)
class TcpResult(Result):
    """`bench tcp`: a number of parallel raw TCP streams."""

    commands = ("bench tcp",)
    more_rounds_by = "--rounds"

    implementation: str
    """"tcp", tensorwire's own streams, or "iperf3 3.12"."""
    streams: int
    message_size: int
    """Bytes of the buffer that each stream sends repeatedly, and receives into."""
    mb_per_s: float
    """The rate of all streams together."""

    @property
    def metric(self) -> Metric:
        return Metric(
            f"Raw TCP, streams: {self.streams}", self.implementation, self.mb_per_s, "MB/s"
        )

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


@dataclass(frozen=True)
class TcpPlan:
    """One call of `bench tcp`."""

    streams: tuple[int, ...] = (1, 4)
    message_size: int = 128 << 10
    """Bytes of each stream's buffer."""
    seconds: int = 1
    """Seconds of each measurement in a round."""
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
        """The number of `advance` calls that the watcher gets."""
        return self.rounds


def side_name(program: str, streams: int) -> str:
    """The name in tables and ratios: "tcp", "iperf3 x4"."""
    return program if streams == 1 else f"{program} x{streams}"


class StreamsSide(Side[None, TcpResult]):
    """Some streams of one program between two ends."""

    implementation: str

    def __init__(self, program: str, streams: int, plan: TcpPlan) -> None:
        self.name = side_name(program, streams)
        self._streams = streams
        self._plan = plan

    def result(self, case: Case[None], rounds: Rounds) -> TcpResult:
        return TcpResult(
            implementation=self.implementation,
            streams=self._streams,
            message_size=self._plan.message_size,
            mb_per_s=1 / statistics.typical_s(rounds),
        )


class OurStreams(StreamsSide):
    """Streams of our own program; `client` is connected."""

    implementation = OURS

    def __init__(self, client: End, streams: int, plan: TcpPlan) -> None:
        super().__init__(OURS, streams, plan)
        self._client = client
        self._messages = 1

    def warm_up(self, what: None) -> None:
        """Determines the number of messages per measurement."""
        messages = 1
        while (seconds := self._send(messages)) < _WARM_UP_S:
            messages *= 2 if seconds > _WARM_UP_S / 10 else 8
        self._messages = max(1, round(messages * self._plan.seconds / seconds))

    def block(self, what: None, steps: int | None) -> list[float]:
        """Seconds for a MB (10^6 bytes), over all streams."""
        seconds = self._send(self._messages)
        return [seconds * 1e6 / (self._streams * self._messages * self._plan.message_size)]

    def _send(self, messages: int) -> float:
        block_bytes = self._streams * messages * self._plan.message_size
        message = {"do": "tcp", "iters": 1, "streams": self._streams, "messages": messages}
        reply = self._client.ask(message, _PATIENCE_S + block_bytes / _SLOWEST_BYTES_PER_S)
        return float(reply["step_s"][0])


class Iperf3Streams(StreamsSide):
    """Streams of iperf3, whose server is running."""

    def __init__(self, iperf3: Iperf3, streams: int, plan: TcpPlan) -> None:
        super().__init__(IPERF3, streams, plan)
        self.implementation = f"{IPERF3} {iperf3_version()}"
        self._iperf3 = iperf3

    def block(self, what: None, steps: int | None) -> list[float]:
        """Seconds for a MB (10^6 bytes), over all streams."""
        plan = self._plan
        return [1 / self._iperf3.mb_per_s(plan.seconds, self._streams, plan.message_size)]


def _setup(plan: TcpPlan) -> Message:
    return {"message_size": plan.message_size}


def _connect(plan: TcpPlan, server: End, client: End, server_at: str, address: str) -> None:
    """Makes the receiver listen at host `server_at`, and the sender connect to `address`."""
    host, port = split_address(address)
    server.ask({"do": "receive", "host": server_at, "port": port})
    streams = max(plan.streams)
    client.ask({"do": "connect", "host": host, "port": port, "streams": streams})


def run(plan: TcpPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE) -> Record[TcpResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        setups = {SERVER: _setup(plan), CLIENT: _setup(plan)}
        processes = stack.enter_context(RawProcesses(TcpTask, setups, host_pool))
        iperf3 = None
        if iperf3_is_installed():
            iperf3 = stack.enter_context(Iperf3(host_pool))
        processes.wait_started(watcher)
        client, address = processes.end(CLIENT), processes.address(SERVER)
        _connect(plan, processes.end(SERVER), client, split_address(address)[0], address)
        return _measure(plan, client, iperf3, watcher, host_pool.document)


def measure_remote(plan: TcpPlan, target: Target, watcher: Watcher) -> Record[TcpResult]:
    """Measures against the receiver on another host.

    Raises:
        TensorwireError: it was not reached in time, has another version, or an end failed.
    """
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the task")
        processes = stack.enter_context(RawProcesses(TcpTask, {CLIENT: _setup(plan)}))
        processes.wait_started(watcher)
        wants = {"setup": _setup(plan), IPERF3: iperf3_is_installed()}
        answer, peer = stack.enter_context(remote_server(COMMAND, target, wants, watcher))
        iperf3 = None
        if answer[IPERF3]:
            host, port = split_address(target.address)
            address = f"[{host}]:{port_of(IPERF3, port)}"
            iperf3 = stack.enter_context(Iperf3(parts=(CLIENT,), address=address))
        client = processes.end(CLIENT)
        _connect(plan, RemoteEnd(peer, SERVER), client, "", target.address)
        return _measure(plan, client, iperf3, watcher)


def serve(port: int, peer_timeout_s: float, watcher: Watcher) -> None:
    """The receiver for a sender on another host, at `port`; iperf3's server is at data_port(port).

    Raises:
        TensorwireError: no sender connected in time, it left too early, or the receiver failed.
    """
    with contextlib.ExitStack() as stack:

        def start(wants: Message) -> tuple[Message, Mapping[str, End]]:
            both = bool(wants[IPERF3]) and iperf3_is_installed()
            if both:
                address = f"localhost:{port_of(IPERF3, port)}"
                stack.enter_context(Iperf3(parts=(SERVER,), address=address))
            server = stack.enter_context(RawProcesses(TcpTask, {SERVER: wants["setup"]}))
            server.wait_started(watcher)
            return {IPERF3: both}, {SERVER: server.end(SERVER)}

        serve_remote(COMMAND, port, peer_timeout_s, start, watcher)


def _measure(
    plan: TcpPlan,
    client: End,
    iperf3: Iperf3 | None,
    watcher: Watcher,
    lab: LabDocument | None = None,
) -> Record[TcpResult]:
    sides: list[Side[None, TcpResult]] = []
    for streams in plan.streams:
        sides.append(OurStreams(client, streams, plan))
        if iperf3 is not None:
            sides.append(Iperf3Streams(iperf3, streams, plan))
    pairs = [(side_name(OURS, n), side_name(IPERF3, n)) for n in plan.streams]
    pairs += [(side_name(OURS, n), OURS) for n in plan.streams if n != 1]
    cases = [Case("streams", None, [None] * plan.rounds)]
    return measure(COMMAND, sides, cases, watcher, pairs=pairs, lab=lab)


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
            "The number after a name is the number of streams.",
        )
    ]
    notes = []
    if all(r.implementation == "tcp" for r in record.results):
        notes.append("iperf3 was not measured: it is not installed (apt-get install iperf3)")
    elif message_size > _MOST_OF_IPERF3_BYTES:
        notes.append("iperf3 sent 1 MiB at a time, which is its limit")
    return Section("Raw TCP", charts=charts, tables=[table], notes=notes)
