"""`bench rpc`: raw RPC without TensorFlow, over grpc++ and over gRPC.

It follows `grpc_raw`, a test of 2017-18 that examined whether the RPC layer limits the rate of
tensors. The client sends requests; the server receives each one completely, discards it and
answers. Both protocols use the same closed loop in C++ (native/raw), with the same number of
requests in flight, connections and threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from numpy.typing import NDArray

from tensorwire.bench.experiments.raw_task import RpcTask, port_of
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.comparison import compared, latency_bars
from tensorwire.bench.frame.comparison_options import Comparison, comparison_options
from tensorwire.bench.frame.contenders import PROTOCOLS
from tensorwire.bench.frame.experiment import Case, Side, measure
from tensorwire.bench.frame.host_options import between_two
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.record import LatencyUs, Metric, Record, Result
from tensorwire.bench.frame.showing import measure_and_show
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import TaskProcesses, Watcher, wait_ready
from tensorwire.bench.lab.channel import Message
from tensorwire.cli.click_extensions import options_of
from tensorwire.cli.two_ends import CLIENT, SERVER
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.report.section import Bar, Bars, Chart, Line, Lines, Section, Table
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

    message_size: int = option(
        64,
        "Bytes of a request; with --job server, of a response.  [default: 64; 10 with --job "
        "server]",
        show_default=False,
    )
    response_size: int = option(10, "Bytes of a response.  [default: 10]", show_default=False)
    total_message: int | None = option(
        None,
        "Measured requests of each protocol.  [default: what takes 0.3 s a round]",
        least=1,
    )
    concurrency: int | None = option(
        None, "Requests in flight.  [default: 64; 4 from 1 MB on]", least=1
    )
    """Over all channels; see `in_flight`."""
    channels: int | None = option(
        None,
        "Connections of the client; requests are spread evenly over them.  [default: 1; from "
        "1 MB on 4]",
        least=1,
    )
    """See `connections`."""
    server_threads: int | None = option(
        None,
        "Completion queues of gRPC, reactors of grpc++; one thread each.  "
        "[default: one per channel]",
        least=1,
    )
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


class RpcSide(TaskProcesses, Side[None, RpcResult]):
    """A server and a client of one implementation."""

    def __init__(
        self,
        protocol: str,
        plan: RpcPlan,
        host_pool: HostPool = THIS_MACHINE,
        library: Path | None = None,
    ) -> None:
        """`library`: the implementation (native/raw/rpc.h), if this package does not know it."""
        super().__init__(host_pool.cluster({SERVER: 1, CLIENT: 1}))
        self.name = protocol
        self.protocol = protocol
        self._plan = plan
        self._speaks = str(library or protocol)
        self._implementation = ""
        self._filling = 1
        self._latency_us: list[NDArray[np.int32]] = []
        self._cpu_s = 0.0

    def _start(self) -> None:
        for job in (SERVER, CLIENT):
            self._start_task(job, RpcTask, {"protocol": self._speaks})

    def wait_started(self, watcher: Watcher) -> None:
        """Makes the server listen and the client connect; see `port_of`."""
        plan = self._plan
        there, here = (
            wait_ready(self._cluster, self._processes[job], watcher)["implementation"]
            for job in (SERVER, CLIENT)
        )
        self._implementation = here if here == there else f"{here} to {there}"
        host, port = split_address(self.address(SERVER))
        port = port_of(self.protocol, port)
        listens_at = host if self._cluster.is_on_this_machine else ""
        serve = {"do": "serve", "host": listens_at, "port": port, "threads": plan.threads}
        self._ask(SERVER, {**serve, "response_size": plan.response_size})
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._ask(CLIENT, {"do": "connect", "address": address, "channels": plan.connections})

    def warm_up(self, what: None) -> None:
        """Determines the number of requests that fill a round."""
        requests = self._plan.in_flight
        while True:
            seconds = float(self._requests(requests)["seconds"])
            if seconds > _ROUND_S / 3 or requests > _LONGEST_ROUND:
                break
            requests *= 4
        fitting = min(_LONGEST_ROUND, round(requests / seconds * _ROUND_S))
        self._filling = max(self._plan.in_flight, fitting)

    def block(self, what: None, requests: int | None) -> list[float]:
        count = requests or self._filling
        cpu_s = self._server_cpu_s()
        asked = self._requests(count)
        self._cpu_s += asked["cpu_s"] + self._server_cpu_s() - cpu_s
        self._latency_us.append(np.asarray(asked["latency_us"], dtype=np.int32))
        return [asked["seconds"] / count]

    def _server_cpu_s(self) -> float:
        return float(self._ask(SERVER, {"do": "cpu"})["cpu_s"])

    def _requests(self, requests: int) -> Message:
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
        return self._ask(CLIENT, message, timeout_s + _PATIENCE_S)

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


def run(plan: RpcPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE) -> Record[RpcResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    The server on another host chooses its threads and the size of its responses.

    Raises:
        TensorwireError: gRPC is not installed, or a task failed or did not answer in time.
    """
    theirs = {"response_size", "server_threads"} & host_pool.settings.keys()
    changed: dict[str, Any] = {name: host_pool.settings[name] for name in theirs}
    plan = dataclasses.replace(plan, **changed)
    sides = [RpcSide(protocol, plan, host_pool) for protocol in plan.protocols]
    return measure_sides(plan, sides, watcher, host_pool)


def measure_sides(
    plan: RpcPlan,
    sides: Sequence[Side[None, RpcResult]],
    watcher: Watcher,
    host_pool: HostPool = THIS_MACHINE,
    **more: Any,
) -> Record[RpcResult]:
    """`run` with sides of the caller's."""
    _check_memory(plan)
    cases = [Case("requests", None, plan.shares)]
    command = more.pop("command", COMMAND)
    return measure(command, sides, cases, watcher, lab=host_pool.document, **more)


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


def _chosen(
    message_size: int | None, response_size: int | None, server_threads: int | None, **_: Any
) -> dict[str, int]:
    """What a server chooses; on its command line --message-size is the size of its responses."""
    if response_size is not None:
        raise UsageError("--job server: --message-size is the size of its responses")
    plan = RpcPlan(response_size=RpcPlan.response_size if message_size is None else message_size)
    chosen = {"response_size": plan.response_size, "server_threads": server_threads}
    return {name: value for name, value in chosen.items() if value is not None}


@click.command(
    "rpc",
    epilog="""\b
Examples:
  tensorwire bench rpc --message-size 64 --concurrency 64
  tensorwire bench rpc --message-size 104857600 --concurrency 4 --channels 1
  tensorwire bench rpc --job server --server-threads 1 --message-size 10
  tensorwire bench rpc --job client --target host1:12222 --total-message 1000 \\
      --message-size 104857600 --concurrency 4 --channels 1""",
)
@options_of(RpcPlan)
@comparison_options(default_rounds=10, tensor_fuse=False, transport=False)
@between_two(COMMAND, _chosen)
def command(*, comparison: Comparison, **options: Any) -> None:
    """Measure raw RPC without TensorFlow: the server discards each request.

    grpc++ is tensorwire's engine. grpc is gRPC in C++ where its development files are installed
    (apt-get install libgrpc++-dev; compiled at first use), or else grpcio; the table says which.
    MB are 10^6 bytes.
    """
    given = {name: value for name, value in options.items() if value is not None}
    plan = RpcPlan(**given, rounds=comparison.rounds, protocols=comparison.protocols)
    measure_and_show(COMMAND, plan, run, comparison)


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
