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
from typing import Annotated, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from tensorwire.bench.experiments.raw import Load, RpcTask, connect_ends
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.columns import Column, LatencyUs
from tensorwire.bench.frame.experiment import Case, Experiment, Variant
from tensorwire.bench.frame.hosts import THIS_MACHINE, HostPool
from tensorwire.bench.frame.options import experiment_command
from tensorwire.bench.frame.record import Record, Result, words
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.tasks import REQUEST_TIMEOUT_S, TaskProcesses, Watcher, patience_s
from tensorwire.bench.lab.channel import Message
from tensorwire.cli.options import CLIENT, SERVER
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option

LARGEST_MESSAGE_BYTES = 2**31 - 1
"""The limit of protobuf, and so of gRPC's messages, is 2 GB; requests of grpc++ get the same."""
_LARGE_BYTES = 1_000_000
_MOST_STREAMS = 4
_ROUND_S = 0.3
_LONGEST_ROUND = 300_000  # requests; the time of each is stored


@dataclass(frozen=True)
class RpcResult(Result):
    """`bench rpc`: one protocol without TensorFlow."""

    commands = ("bench rpc", "benchmarks/peers")
    more_rounds_by = "--rounds"
    figure = "requests_per_s"
    group_header = "size"
    over_sizes = "A request, without TensorFlow"
    title = words("Raw RPC, responses of {0.response_size} bytes (MB = 10^6 bytes)")
    of = words("RPC, {0.group}, {0.concurrency} in flight")
    does = words("moves requests of {0.group}")

    protocol: str
    implementation: Annotated[str, Column("by")]
    """"engine" (tensorwire's), "grpc C++ 1.51.1" or "grpcio 1.76.0" (in Python)."""
    message_size: int
    """Bytes of a request, which the server receives completely and discards."""
    response_size: int
    concurrency: Annotated[int, Column("in flight")]
    """Requests in flight, over all channels; 0: as many as the peer decides."""
    channels: Annotated[int, Column("channels")]
    """Number of TCP connections."""
    server_threads: Annotated[int, Column("threads")]
    """Threads of the server that move bytes: completion queues of gRPC, reactors of the engine."""
    requests: int
    """Measured requests."""
    requests_per_s: Annotated[float, Column("requests/s", "/s", chart="Rate")]
    mb_per_s: Annotated[float, Column("MB/s", "MB/s", chart="Rate, MB = 10^6 bytes")]
    """MB of requests per second, without responses."""
    latency_us: Annotated[LatencyUs | None, Column("us", chart="Latency")]
    """Latency of a request; None if it was not measured."""
    cpu_us_per_request: Annotated[float | None, Column("CPU us")]
    """CPU time of both ends; None if it is unknown."""

    @property
    def size_bytes(self) -> float:
        return self.message_size


@dataclass(frozen=True, kw_only=True)
class Rpc(Experiment[None, RpcResult]):
    """Measure raw RPC without TensorFlow: the server discards each request.

    grpc++ is tensorwire's engine. grpc is gRPC in C++ where its development files are installed
    (apt-get install libgrpc++-dev; compiled at first use), or else grpcio; the table says which.
    MB are 10^6 bytes.
    """

    command = "bench rpc"
    takes = frozenset({"protocols", "lab"})

    message_size: int = option(
        64,
        "Bytes of a request; with --job server, of a response.  [default: 64; 10 with --job "
        "server]",
        show_default=False,
        least=0,
        most=LARGEST_MESSAGE_BYTES,
    )
    response_size: int = option(
        10,
        "Bytes of a response.  [default: 10]",
        show_default=False,
        least=0,
        most=LARGEST_MESSAGE_BYTES,
    )
    total_message: int | None = option(
        None, "Measured requests of each protocol.  [default: what takes 0.3 s a round]", least=1
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

    def __post_init__(self) -> None:
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
    def cases(self) -> list[Case[None]]:
        total = self.total_message
        shares: Sequence[int | None] = [None] * self.rounds  # as many as fill a round
        if total is not None:
            shares = statistics.split(total, self.rounds)
        return [Case("requests", None, shares)]

    def variants(self, hosts: HostPool) -> Sequence[Variant[None, RpcResult]]:
        """The server on another host chooses its threads and the size of its responses."""
        theirs = {"response_size", "server_threads"} & hosts.settings.keys()
        changed: dict[str, Any] = {name: hosts.settings[name] for name in theirs}
        plan = dataclasses.replace(self, **changed)
        plan.check_memory()
        return [RpcVariant(protocol, plan, hosts) for protocol in self.protocols]

    def check_memory(self) -> None:
        """Raises TensorwireError if the requests in flight need more memory than is free."""
        # The sent buffer, and all requests that a server of gRPC may have received partly.
        of_protocol = (1 + self.in_flight) * (self.message_size + self.response_size)
        needed, available = len(self.protocols) * of_protocol, psutil.virtual_memory().available
        if needed > available:
            raise TensorwireError(
                f"{self.in_flight} requests of {self.message_size} bytes in flight take about "
                f"{needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are available: use "
                "a smaller --message-size or --concurrency"
            )


class RpcVariant(TaskProcesses, Variant[None, RpcResult]):
    """A server and a client of one implementation."""

    def __init__(
        self, protocol: str, plan: Rpc, hosts: HostPool = THIS_MACHINE, library: Path | None = None
    ) -> None:
        """`library`: the implementation (native/raw/rpc.h), if this package does not know it."""
        super().__init__(hosts.cluster({SERVER: 1, CLIENT: 1}))
        self.name = protocol
        self._plan = plan
        self._speaks = str(library or protocol)
        self._filling = 1
        self._latency_us: list[NDArray[np.int32]] = []
        self._cpu_s = 0.0

    def start(self) -> None:
        for job in (SERVER, CLIENT):
            self.start_task(job, RpcTask, protocol=self._speaks)

    def wait_started(self, watcher: Watcher) -> None:
        super().wait_started(watcher)
        connect_ends(
            self,
            self.name,
            [CLIENT],
            threads=self._plan.threads,
            response_size=self._plan.response_size,
            channels=self._plan.connections,
        )

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
        cpu_s = self.ask(SERVER, "cpu")["cpu_s"]
        asked = self._requests(count)
        self._cpu_s += asked["cpu_s"] + self.ask(SERVER, "cpu")["cpu_s"] - cpu_s
        self._latency_us.append(np.asarray(asked["latency_us"], dtype=np.int32))
        return [asked["seconds"] / count]

    def _requests(self, requests: int) -> Message:
        plan = self._plan
        moved_bytes = requests * (plan.message_size + plan.response_size)
        timeout_s = patience_s(requests=requests, moved_bytes=moved_bytes)
        sizes = (plan.in_flight, plan.message_size, plan.response_size)
        load = Load(requests, *sizes, timeout_s)
        return self.ask(CLIENT, "run", timeout_s + REQUEST_TIMEOUT_S, load=dataclasses.asdict(load))

    def result(self, case: Case[None], rounds: Rounds) -> RpcResult:
        plan = self._plan
        seconds = statistics.typical_s(rounds)
        requests = sum(map(len, self._latency_us))
        there, here = (self.ready[f"{job}:0"]["implementation"] for job in (SERVER, CLIENT))
        return RpcResult(
            protocol=self.name,
            implementation=here if here == there else f"{here} to {there}",
            message_size=plan.message_size,
            response_size=plan.response_size,
            concurrency=plan.in_flight,
            channels=plan.connections,
            server_threads=plan.threads,
            requests=requests,
            requests_per_s=1 / seconds,
            mb_per_s=plan.message_size / seconds / 1e6,
            latency_us=statistics.percentiles(LatencyUs, self._latency_us),
            cpu_us_per_request=self._cpu_s / requests * 1e6,
        )


def of_all_sizes(records: Sequence[Record[RpcResult]]) -> Record[RpcResult]:
    """Merges the records of several sizes into one.

    Ratios have names such as "grpc++/grpc 64 B", and scatters such as "grpc 64 B".
    """
    named = {record.results[0].group: record for record in records}
    noises = {size: record.noise for size, record in named.items() if record.noise is not None}
    return dataclasses.replace(
        records[0],
        results=[result for record in records for result in record.results],
        ratios={
            f"{name} {size}": ratio
            for size, record in named.items()
            for name, ratio in record.ratios.items()
        },
        noise=dataclasses.replace(
            [*noises.values()][-1],
            load_start=next(iter(noises.values())).load_start,
            steal=max(noise.steal for noise in noises.values()),
            scatter={
                f"{name} {size}": share
                for size, noise in noises.items()
                for name, share in noise.scatter.items()
            },
        ),
    )


def _chosen(
    message_size: int | None, response_size: int | None, server_threads: int | None, **_: Any
) -> dict[str, int]:
    """What a server chooses; on its command line --message-size is the size of its responses."""
    if response_size is not None:
        raise UsageError("--job server: --message-size is the size of its responses")
    plan = Rpc(response_size=Rpc.response_size if message_size is None else message_size)
    chosen = {"response_size": plan.response_size, "server_threads": server_threads}
    return {name: value for name, value in chosen.items() if value is not None}


command = experiment_command(
    Rpc,
    """
  tensorwire bench rpc --message-size 64 --concurrency 64
  tensorwire bench rpc --message-size 104857600 --concurrency 4 --channels 1
  tensorwire bench rpc --job server --server-threads 1 --message-size 10
  tensorwire bench rpc --job client --target host1:12222 --total-message 1000 \\
      --message-size 104857600 --concurrency 4 --channels 1""",
    tasks="ends",
    chosen_by_server=_chosen,
)
