"""`bench rpc`: raw RPC without TensorFlow, over grpc++ and over gRPC.

It follows `grpc_raw`, a test of 2017-18 that examined whether the RPC layer limits the rate of
tensors. The client sends requests; the server receives each one completely, discards it and
answers. Both protocols use the same closed loop in C++ (native/raw), with the same number of
requests in flight, connections and threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

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
from tensorwire.bench.raw_task import RpcTask
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.lab.channel import Message
from tensorwire.measure import statistics
from tensorwire.measure.comparison import compared, latency_bars
from tensorwire.measure.contenders import PROTOCOLS
from tensorwire.measure.experiment import Case, Side, measure
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.record import LabDocument, LatencyUs, Metric, Record, Result
from tensorwire.measure.section import Bar, Bars, Chart, Line, Lines, Section, Table
from tensorwire.measure.statistics import Rounds
from tensorwire.measure.task_processes import Watcher
from tensorwire.units import data_size, number

COMMAND = "bench rpc"
LARGEST_MESSAGE_BYTES = 2**31 - 1
"""The limit of protobuf, and so of gRPC's messages, is 2 GB; requests of grpc++ get the same."""
_LARGE_BYTES = 1_000_000
_MOST_STREAMS = 4
_ROUND_S = 0.3
_LONGEST_ROUND = 300_000  # requests; the time of each is stored
_SLOWEST_REQUESTS_PER_S = 100.0
_SLOWEST_BYTES_PER_S = 20e6
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class RpcResult(Result):
    """`bench rpc`: one protocol without TensorFlow."""

    commands = (
        "bench rpc",
        "benchmarks/peers",
    )
    more_rounds_by = "--rounds"

    protocol: str
    implementation: str
    """"engine" (tensorwire's), "grpc C++ 1.51.1" or "grpcio 1.76.0" (in Python)."""
    message_size: int
    """Bytes of a request, which the server receives completely and discards."""
    response_size: int
    concurrency: int
    """Requests in flight, over all channels; 0: as many as the peer decides."""
    channels: int
    """Number of TCP connections."""
    server_threads: int
    """Threads of the server that move bytes: completion queues of gRPC, reactors of the engine."""
    requests: int
    """Measured requests."""
    requests_per_s: float
    mb_per_s: float
    """MB of requests per second, without responses."""
    latency_us: LatencyUs | None
    """Latency of a request; None if it was not measured."""
    cpu_us_per_request: float | None
    """CPU time of both ends; None if it is unknown."""

    @property
    def metric(self) -> Metric:
        of = f"RPC, {data_size(self.message_size)}, {self.concurrency} in flight"
        return Metric(of, self.protocol, self.requests_per_s, "/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


@dataclass(frozen=True)
class RpcPlan:
    """One call of `bench rpc`. Sizes in bytes."""

    message_size: int = 64
    response_size: int = 10
    concurrency: int | None = None
    """Requests in flight, over all channels; see `in_flight`."""
    channels: int | None = None
    """Connections of the client; see `connections`."""
    server_threads: int | None = None
    """Threads of the server; None: one per connection."""
    total_message: int | None = None
    """Requests of each protocol, over all rounds; None: as many as take 0.3 s per round."""
    rounds: int = 10
    protocols: tuple[str, ...] = PROTOCOLS

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be measured."""
        for flag, size in (
            ("--message-size", self.message_size),
            ("--response-size", self.response_size),
        ):
            if not 0 <= size <= LARGEST_MESSAGE_BYTES:
                raise UsageError(f"{flag} {size}: give bytes from 0 to {LARGEST_MESSAGE_BYTES}")
        if self.channels is not None and self.in_flight < self.channels:
            raise UsageError(
                f"--concurrency {self.in_flight} leaves some of --channels {self.channels} unused"
            )

    @property
    def in_flight(self) -> int:
        """`concurrency`; by default 64, or 4 for large messages, to limit the memory."""
        if self.concurrency is not None:
            return self.concurrency
        return max(self.channels or 1, 4 if self.message_size >= _LARGE_BYTES else 64)

    @property
    def connections(self) -> int:
        """`channels`; by default 1, or up to 4 for large messages."""
        if self.channels is not None:
            return self.channels
        wanted = _MOST_STREAMS if self.message_size >= _LARGE_BYTES else 1
        return min(wanted, self.in_flight)

    @property
    def threads(self) -> int:
        """`server_threads`, or one for each connection."""
        return self.server_threads or self.connections

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return len(self.shares)

    @property
    def shares(self) -> Sequence[int | None]:
        """Requests of each round; None: as many as fill the round."""
        if self.total_message is None:
            return [None] * self.rounds
        return statistics.split(self.total_message, self.rounds)


class RpcSide(Side[None, RpcResult]):
    """A running server and a running client of one implementation."""

    def __init__(
        self,
        protocol: str,
        plan: RpcPlan,
        server: End,
        client: End,
        implementation: str,
        address: str,
        server_at: str,
    ) -> None:
        """`address`: that of the server for the client. `server_at`: the host address on which it
        listens; "" for all.
        """
        self.name = protocol
        self.protocol = protocol
        self.address = address
        self._plan = plan
        self._server = server
        self._client = client
        self._implementation = implementation
        self._server_at = server_at
        self._filling = 1
        self._latency_us: list[NDArray[np.int32]] = []
        self._cpu_s = 0.0

    def wait_started(self, watcher: Watcher) -> None:
        """Makes the server listen and the client connect; see `port_of`."""
        plan = self._plan
        host, port = split_address(self.address)
        port = port_of(self.protocol, port)
        self._server.ask(
            {
                "do": "serve",
                "host": self._server_at,
                "port": port,
                "threads": plan.threads,
                "response_size": plan.response_size,
            }
        )
        bracketed = f"[{host}]" if ":" in host else host
        self._client.ask(
            {"do": "connect", "address": f"{bracketed}:{port}", "channels": plan.connections}
        )

    def warm_up(self, what: None) -> None:
        """Determines the number of requests that fill a round."""
        requests = self._plan.in_flight
        while True:
            seconds = float(self._ask(requests)["seconds"])
            if seconds > _ROUND_S / 3 or requests > _LONGEST_ROUND:
                break
            requests *= 4
        fitting = min(_LONGEST_ROUND, round(requests / seconds * _ROUND_S))
        self._filling = max(self._plan.in_flight, fitting)

    def block(self, what: None, requests: int | None) -> list[float]:
        count = requests or self._filling
        cpu_s = self._server_cpu_s()
        asked = self._ask(count)
        self._cpu_s += asked["cpu_s"] + self._server_cpu_s() - cpu_s
        self._latency_us.append(np.asarray(asked["latency_us"], dtype=np.int32))
        return [asked["seconds"] / count]

    def _server_cpu_s(self) -> float:
        return float(self._server.ask({"do": "cpu"})["cpu_s"])

    def _ask(self, requests: int) -> Message:
        plan = self._plan
        moved_bytes = requests * (plan.message_size + plan.response_size)
        timeout_s = (
            _PATIENCE_S + requests / _SLOWEST_REQUESTS_PER_S + moved_bytes / _SLOWEST_BYTES_PER_S
        )
        message: dict[str, Any] = {
            "do": "ask",
            "requests": requests,
            "concurrency": plan.in_flight,
            "request_size": plan.message_size,
            "response_size": plan.response_size,
            "timeout_s": timeout_s,
        }
        return self._client.ask(message, timeout_s + _PATIENCE_S)

    def result(self, case: Case[None], rounds: Rounds) -> RpcResult:
        plan = self._plan
        seconds = statistics.typical_s(rounds)
        requests = sum(map(len, self._latency_us))
        return RpcResult(
            protocol=self.protocol,
            implementation=self._implementation,
            message_size=plan.message_size,
            response_size=plan.response_size,
            concurrency=plan.in_flight,
            channels=plan.connections,
            server_threads=plan.threads,
            requests=requests,
            requests_per_s=1 / seconds,
            mb_per_s=plan.message_size / seconds / 1e6,
            latency_us=statistics.latency_us(self._latency_us),
            cpu_us_per_request=self._cpu_s / requests * 1e6,
        )


def _setup(speaks: str) -> Message:
    return {"protocol": speaks}


@contextlib.contextmanager
def local_sides(
    plan: RpcPlan,
    watcher: Watcher,
    host_pool: HostPool = THIS_MACHINE,
    libraries: Mapping[str, Path] | None = None,
) -> Iterator[list[RpcSide]]:
    """A side for each protocol of `plan`; their processes run within the context.

    `libraries`: implementations (native/raw/rpc.h) of protocols that this package does not know.
    """
    _check_memory(plan)
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        started = []
        for name in plan.protocols:
            setup = _setup(str((libraries or {}).get(name, name)))
            processes = RawProcesses(RpcTask, {SERVER: setup, CLIENT: setup}, host_pool)
            started.append((name, stack.enter_context(processes)))
        sides = []
        for name, processes in started:
            ready = processes.wait_started(watcher)
            address = processes.address(SERVER)
            sides.append(
                RpcSide(
                    name,
                    plan,
                    processes.end(SERVER),
                    processes.end(CLIENT),
                    ready[CLIENT]["implementation"],
                    address,
                    split_address(address)[0],
                )
            )
        yield sides


def run(plan: RpcPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE) -> Record[RpcResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: gRPC is not installed, or a task failed or did not answer in time.
    """
    with local_sides(plan, watcher, host_pool) as sides:
        return _measure(plan, sides, watcher, host_pool.document)


def measure_remote(plan: RpcPlan, target: Target, watcher: Watcher) -> Record[RpcResult]:
    """Measures against the server on another host, which sets its threads and response size.

    Raises:
        TensorwireError: it was not reached in time, has another version, or an end failed.
    """
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the clients")
        clients = {
            name: stack.enter_context(RawProcesses(RpcTask, {CLIENT: _setup(name)}))
            for name in plan.protocols
        }
        ready = {name: client.wait_started(watcher) for name, client in clients.items()}
        wants = {"protocols": list(plan.protocols)}
        answer, peer = stack.enter_context(remote_server(COMMAND, target, wants, watcher))
        plan = dataclasses.replace(
            plan,
            response_size=answer["response_size"],
            server_threads=answer["server_threads"],
        )
        sides = []
        for name, client in clients.items():
            here = ready[name][CLIENT]["implementation"]
            there = answer["implementations"][name]
            sides.append(
                RpcSide(
                    name,
                    plan,
                    RemoteEnd(peer, name),
                    client.end(CLIENT),
                    here if here == there else f"{here} to {there}",
                    target.address,
                    "",
                )
            )
        return _measure(plan, sides, watcher)


def serve(plan: RpcPlan, port: int, peer_timeout_s: float, watcher: Watcher) -> None:
    """The server for a client on another host, with threads and response size of `plan`.

    gRPC uses `port`, grpc++ uses data_port(port). Returns when the client is done.

    Raises:
        TensorwireError: no client connected in time, it left too early, or an end failed.
    """
    with contextlib.ExitStack() as stack:

        def start(wants: Message) -> tuple[Message, Mapping[str, End]]:
            servers = {
                name: stack.enter_context(RawProcesses(RpcTask, {SERVER: _setup(name)}))
                for name in wants["protocols"]
            }
            implementations = {
                name: server.wait_started(watcher)[SERVER]["implementation"]
                for name, server in servers.items()
            }
            reply = {
                "response_size": plan.response_size,
                "server_threads": plan.server_threads,
                "implementations": implementations,
            }
            return reply, {name: server.end(SERVER) for name, server in servers.items()}

        serve_remote(COMMAND, port, peer_timeout_s, start, watcher)


def _check_memory(plan: RpcPlan) -> None:
    """Raises TensorwireError if the requests in flight need more memory than is free."""
    # The sent buffer, and all requests that a server of gRPC may have received partly.
    needed = len(plan.protocols) * (1 + plan.in_flight) * (plan.message_size + plan.response_size)
    available = psutil.virtual_memory().available
    if needed > available:
        raise TensorwireError(
            f"{plan.in_flight} requests of {plan.message_size} bytes in flight take about "
            f"{needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are available: use a "
            "smaller --message-size or --concurrency"
        )


def _measure(
    plan: RpcPlan,
    sides: Sequence[RpcSide],
    watcher: Watcher,
    lab: LabDocument | None = None,
) -> Record[RpcResult]:
    return measure(COMMAND, sides, [Case("requests", None, plan.shares)], watcher, lab=lab)


def _section(record: Record[RpcResult]) -> Section:
    first = record.results[0]
    by_size: dict[int, list[RpcResult]] = {}
    for result in record.results:
        by_size.setdefault(result.message_size, []).append(result)
    table = Table(
        f"Raw RPC, responses of {first.response_size} bytes (MB = 10^6 bytes)",
        [
            "protocol",
            "by",
            "bytes",
            "in flight",
            "channels",
            "threads",
            "requests/s",
            "MB/s",
            "us p50",
            "p99",
            "CPU us",
        ],
        [[_row(r) for r in rows] for rows in by_size.values()],
        text_columns=2,
    )
    charts: list[Chart] = []
    for size, rows in by_size.items():
        what = f"requests of {data_size(size)}"
        charts.append(
            Bars(
                f"Rate, {what}",
                "/s",
                [Bar(r.protocol, r.requests_per_s, r.protocol) for r in rows],
            )
        )
        charts.append(
            latency_bars(
                f"Latency, {what}",
                [(r.protocol, r.latency_us) for r in rows if r.latency_us is not None],
            )
        )
    if len(by_size) > 1:
        charts = [rpc_lines(record)]
    headline = ""
    if len(by_size) == 1:
        headline = compared(record.ratios, f"moves requests of {data_size(first.message_size)}")
    if len(by_size) > 1:
        title = "Raw RPC over sizes"
    else:
        title = f"Raw RPC, {data_size(first.message_size)}, {first.concurrency} in flight"
    return Section(title, headline, charts, [table])


def rpc_lines(record: Record[RpcResult]) -> Lines:
    """The rate of each protocol over the request's size."""
    points: dict[str, list[tuple[float, float]]] = {}
    for r in record.results:
        points.setdefault(r.protocol, []).append((r.message_size, r.mb_per_s))
    by = dict.fromkeys(f"{r.protocol} by {r.implementation}" for r in record.results)
    return Lines(
        "A request, without TensorFlow",
        "MB/s",
        [Line(protocol, of_protocol) for protocol, of_protocol in points.items()],
        f"MB/s, MB = 10^6 bytes; both axes are logarithmic; {', '.join(by)}.",
    )


def _row(r: RpcResult) -> list[str]:
    latency = ["-", "-"]
    if r.latency_us is not None:
        latency = [number(r.latency_us.p50), number(r.latency_us.p99)]
    return [
        r.protocol,
        r.implementation,
        str(r.message_size),
        str(r.concurrency) if r.concurrency else "-",
        str(r.channels),
        str(r.server_threads),
        number(r.requests_per_s),
        number(r.mb_per_s),
        *latency,
        "-" if r.cpu_us_per_request is None else number(r.cpu_us_per_request),
    ]
