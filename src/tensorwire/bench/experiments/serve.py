"""`bench serve`: how many requests per second one ps answers for many clients.

The ps is a normal TensorFlow server. Before each round its rendezvous gets a tensor for every
request of the round, so a request costs only the service and no graph execution. Each client has
its own TCP connection and requests the next tensor when it has received one. On gRPC the clients
are TensorFlow's own, as its worker cache creates them; on grpc++ they are the plug-in's. All
clients share one process with the threads of one worker, to leave enough CPU for the ps.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from tensorwire.bench.experiments.serve_task import (
    PAYLOADS,
    ClientsTask,
    PsTask,
    check_message_size,
)
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.comparison import compared, latency_bars, transport_of
from tensorwire.bench.frame.comparison_options import Comparison, comparison_options
from tensorwire.bench.frame.contenders import DEFAULT_SETTING, PROTOCOLS, Setting
from tensorwire.bench.frame.experiment import Case, Side, measure
from tensorwire.bench.frame.host_options import between_hosts
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.record import LatencyUs, Metric, Record, Result
from tensorwire.bench.frame.showing import measure_and_show
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import TaskProcesses, Watcher, wait_started
from tensorwire.bench.lab.channel import Message
from tensorwire.cli.click_extensions import options_of
from tensorwire.cluster import data_port
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.report.section import Bar, Bars, Section, Table
from tensorwire.units import number

COMMAND = "bench serve"
_WARM_UP_REQUESTS = 2000
_CONNECT_TIMEOUT_S = 60.0
_SLOWEST_REQUESTS_PER_S = 100.0
_SLOWEST_BYTES_PER_S = 20e6
# Descriptors of a TensorFlow task other than its connections; about ten times the real number.
_OTHER_DESCRIPTORS = 500
_MOST_CLIENTS = 20_000
_DEFAULT_BYTES = 5_000_000_000
# States in /proc/net/tcp.
_ESTABLISHED = "01"
_UNIX_CONNECTED = "03"
_CLOSE_WAIT = "08"


@dataclass(frozen=True)
class ServeResult(Result):
    """`bench serve`: one protocol, one ps and many clients."""

    commands = ("bench serve",)
    more_rounds_by = "--requests"

    protocol: str
    clients: int
    """Number of clients; each has its own connection."""
    in_flight: int
    """Requests in flight of each client."""
    message_size: int
    """Mean bytes of a tensor."""
    payload: str
    """"uniform", "random" or "skewed"."""
    requests: int
    """Measured requests."""
    requests_per_s: float
    mb_per_s: float
    latency_us: LatencyUs
    ps_cpu_us_per_request: float
    """CPU time of the ps's process."""
    ps_threads: int
    connect_s: float | None = None
    """Seconds until every client had connected and had its first answer."""
    ps_bytes_per_client: float | None = None
    """Growth of the ps's resident memory while the clients connected, divided by their number."""
    ps_descriptors_per_client: float | None = None
    fairness: float | None = None
    """Number of requests of the slowest client divided by that of the fastest client."""
    busy: int | None = None
    """Number of clients that send requests; None: all of them."""
    disconnect_s: float | None = None
    """Seconds from the death of the clients' process until the ps had closed its connections."""

    @property
    def metric(self) -> Metric:
        busy = "" if self.busy is None else f", {self.busy} of them busy,"
        of = f"One ps, {self.clients} clients{busy} with {self.in_flight} request(s), "
        return Metric(
            f"{of}{self.payload} payload of {self.message_size} bytes",
            self.protocol,
            self.requests_per_s,
            "/s",
        )

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


@dataclass(frozen=True)
class ServePlan:
    """One call of `bench serve`; `requests` of each protocol, over all rounds."""

    clients: int = option(64, "Number of clients, each with its own connection to the ps.")
    busy: int | None = option(
        None,
        "Number of clients that send requests; the others only stay connected.  [default: all]",
        least=1,
    )
    message_size: int = option(4096, "Mean size of a tensor in bytes.")
    payload: str = option(
        "uniform",
        "uniform: all tensors have this size; random: from 1 byte to twice the size, each size "
        "equally likely; skewed: of ten tensors, six have 0.1 times the size, three have the size, "
        "one has 6.4 times the size.",
        choices=PAYLOADS,
    )
    in_flight: int = option(1, "Requests that a client keeps in flight.", least=1)
    requests: int = option(
        200_000,
        "Measured requests of each protocol.  [default: 200000; fewer where tensors are large]",
        least=1,
        show_default=False,
    )
    rounds: int = 10
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    def __post_init__(self) -> None:
        """Raises UsageError for what this machine cannot run."""
        check_message_size(self.message_size)
        if not 1 <= self.clients <= _MOST_CLIENTS:
            raise UsageError(f"--clients {self.clients}: give a number from 1 to {_MOST_CLIENTS}")
        if not 1 <= self.senders <= self.clients:
            raise UsageError(f"--busy {self.busy}: give a number from 1 to {self.clients}")
        if self.requests < self.rounds * self.senders * self.in_flight:
            raise UsageError(
                f"--requests {self.requests} is less than one request per round and client: "
                f"give at least {self.rounds * self.senders * self.in_flight}"
            )
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and self.clients + _OTHER_DESCRIPTORS > most:
            raise UsageError(
                f"--clients {self.clients}: a process may open {most} files and sockets here; "
                "raise that (ulimit -Hn) or use fewer clients"
            )

    @property
    def senders(self) -> int:
        """Number of clients that send requests."""
        return self.clients if self.busy is None else self.busy

    @property
    def shares(self) -> list[int]:
        """Requests of each round."""
        return statistics.split(self.requests, self.rounds)

    @property
    def blocks(self) -> int:
        """The number of times that the watcher is advanced."""
        return len(self.shares)


class ServeSide(TaskProcesses, Side[None, ServeResult]):
    """One ps and its clients, for one protocol."""

    def __init__(self, protocol: str, plan: ServePlan, host_pool: HostPool = THIS_MACHINE) -> None:
        super().__init__(host_pool.cluster({"ps": 1, "clients": 1}))
        self.name = protocol
        self.protocol = protocol
        self._plan = plan
        self._step = 0
        self._latency_us: list[list[int]] = []
        self._ps_cpu_s = 0.0
        self._bytes = 0
        self._answers = np.zeros(plan.clients, dtype=np.int64)

    def _start(self) -> None:
        # Addresses of workers that do not exist: the ps sizes its thread pools by the number of
        # tasks. No task listens at these addresses or connects to them.
        workers = [f"127.0.0.1:{1024 + index}" for index in range(self._plan.clients)]
        common: Message = {
            "protocol": self.protocol,
            "descriptors": self._plan.clients + _OTHER_DESCRIPTORS,
        }
        spec = {"ps": self._cluster.spec["ps"], "worker": workers}
        env = self._plan.setting.task_environment()
        self._start_task("ps", PsTask, {"spec": spec, **common}, env)
        self._start_task("clients", ClientsTask, common, env)

    @property
    def _port(self) -> int:
        port = int(self.address("ps").rpartition(":")[2])
        return data_port(port) if self.protocol == "grpc++" else port

    def wait_started(self, watcher: Watcher) -> None:
        """Returns when the ps runs and the clients have connected."""
        for process in self._processes.values():
            self.tensorflow = wait_started(self._cluster, process, watcher)
        incarnation = self._ask("ps", {"do": "incarnation"})["incarnation"]
        self._ask(
            "clients",
            {
                "do": "connect",
                "address": f"{self.address('ps').rpartition(':')[0]}:{self._port}",
                "clients": self._plan.clients,
                "incarnation": incarnation,
            },
        )
        self._connect()

    def _connect(self) -> None:
        """Connects every client by its first request, and measures the cost for the ps."""
        clients = self._plan.clients
        ps = psutil.Process(self._processes["ps"].pid)
        bytes_to_come = self._fill(clients)
        descriptors = ps.num_fds()
        resident_bytes = ps.memory_info().rss
        self._connect_s = float(self._ask_for(clients, bytes_to_come, clients)["seconds"])
        self._ps_bytes_per_client = (ps.memory_info().rss - resident_bytes) / clients
        self._ps_descriptors_per_client = (ps.num_fds() - descriptors) / clients

    def _disconnect_s(self) -> float:
        """Kills the clients; returns seconds until the ps has closed their connections."""
        ps = self._processes["ps"].pid
        begin = time.perf_counter()
        self._processes["clients"].stop()
        while left := connections_from(self._port, ps) + lanes_at(ps):
            if time.perf_counter() - begin > _CONNECT_TIMEOUT_S:
                raise TensorwireError(
                    f"{left} connections of dead clients are open at the ps of {self.protocol} "
                    f"after {_CONNECT_TIMEOUT_S:.0f} s"
                )
            time.sleep(0.005)
        return time.perf_counter() - begin

    def warm_up(self, what: None) -> None:
        """Runs requests until every client has been answered.

        Raises:
            TensorwireError: some clients share a connection.
        """
        self._run(max(_WARM_UP_REQUESTS, 2 * self._plan.senders * self._plan.in_flight))
        connections = connections_to(self._port, self._processes["clients"].pid)
        connections += lanes_at(self._processes["ps"].pid)
        if connections < self._plan.clients:
            raise TensorwireError(
                f"{self._plan.clients} clients of {self.protocol} share {connections} connections: "
                "their results are invalid"
            )

    def block(self, what: None, requests: int | None) -> list[float]:
        count = requests or 1
        cpu_s = float(self._ask("ps", {"do": "cpu"})["cpu_s"])
        asked = self._run(count)
        self._ps_cpu_s += float(self._ask("ps", {"do": "cpu"})["cpu_s"]) - cpu_s
        self._latency_us.append(asked["latency_us"])
        self._bytes += asked["bytes"]
        self._answers += np.asarray(asked["answers"])
        return [asked["seconds"] / count]

    def transport(self) -> str:
        return transport_of([self._ask("ps", {"do": "wire"})])

    def _run(self, requests: int) -> Message:
        return self._ask_for(requests, self._fill(requests), self._plan.senders)

    def _fill(self, requests: int) -> int:
        """Puts a tensor into the ps for each coming request; returns their total bytes."""
        plan = self._plan
        self._step += 1
        filled = self._ask(
            "ps",
            {
                "do": "fill",
                "step": self._step,
                "payload": plan.payload,
                "message_size": plan.message_size,
                "count": requests,
            },
        )
        return int(filled["bytes"])

    def _ask_for(self, requests: int, bytes_to_come: int, senders: int) -> Message:
        plan = self._plan
        patience_s = (
            _CONNECT_TIMEOUT_S
            + requests / _SLOWEST_REQUESTS_PER_S
            + bytes_to_come / _SLOWEST_BYTES_PER_S
        )
        asked = self._ask(
            "clients",
            {
                "do": "ask",
                "step": self._step,
                "count": requests,
                "busy": senders,
                "in_flight": plan.in_flight,
                "timeout_s": patience_s,
            },
            patience_s + _CONNECT_TIMEOUT_S,
        )
        if asked["bytes"] != bytes_to_come:
            raise TensorwireError(
                f"{asked['bytes']} of {bytes_to_come} bytes arrived over {self.protocol}: "
                "its results are invalid"
            )
        return asked

    def result(self, case: Case[None], rounds: Rounds) -> ServeResult:
        plan = self._plan
        seconds = statistics.typical_s(rounds)
        requests = sum(map(len, self._latency_us))
        answers = self._answers[: plan.senders]
        return ServeResult(
            protocol=self.protocol,
            clients=plan.clients,
            in_flight=plan.in_flight,
            message_size=plan.message_size,
            payload=plan.payload,
            requests=requests,
            requests_per_s=1 / seconds,
            mb_per_s=self._bytes / requests / seconds / 1e6,
            latency_us=statistics.latency_us(self._latency_us),
            ps_cpu_us_per_request=self._ps_cpu_s / requests * 1e6,
            ps_threads=int(self._ask("ps", {"do": "cpu"})["threads"]),
            connect_s=self._connect_s,
            ps_bytes_per_client=self._ps_bytes_per_client,
            ps_descriptors_per_client=self._ps_descriptors_per_client,
            fairness=float(answers.min() / answers.max()),
            busy=plan.busy,
            disconnect_s=self._disconnect_s(),
        )


def connections_to(port: int, pid: int) -> int:
    """Number of established connections to a remote port, in the network of process `pid`."""
    return sum(remote == port and state == _ESTABLISHED for _, remote, state in _tcp_sockets(pid))


def connections_from(port: int, pid: int) -> int:
    """Number of connections at a local port, not yet closed, in the network of process `pid`."""
    states = (_ESTABLISHED, _CLOSE_WAIT)
    return sum(local == port and state in states for local, _, state in _tcp_sockets(pid))


def lanes_at(pid: int) -> int:
    """Number of connections that a task has accepted at its lane, a Unix socket (lane.h)."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            own.add(str(descriptor.readlink()))
    sockets = (line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines())
    return sum(
        f"socket:[{fields[6]}]" in own
        and fields[5] == _UNIX_CONNECTED
        and "tensorwire-" in fields[7]
        for fields in sockets
        if len(fields) > 7
    )


def _tcp_sockets(pid: int) -> Iterator[tuple[int, int, str]]:
    """Local port, remote port and state of each TCP socket in the network of process `pid`."""
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            _, local, remote, state = line.split()[:4]
            yield int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16), state


def run(
    plan: ServePlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[ServeResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    sides = [ServeSide(name, plan, host_pool) for name in plan.protocols]
    cases = [Case(f"{plan.clients} clients", None, plan.shares)]
    return measure(COMMAND, sides, cases, watcher, lab=host_pool.document)


@click.command(
    "serve",
    epilog="""\b
Examples:
  tensorwire bench serve
  tensorwire bench serve --clients 256 --message-size 65536 --payload skewed --json serve.json""",
)
@options_of(ServePlan)
@comparison_options(default_rounds=10, tensor_fuse=False)
@between_hosts(COMMAND)
def command(*, comparison: Comparison, requests: int | None, **options: Any) -> None:
    """Ask one ps for tensors from many clients: requests a second, and their latency.

    Payloads are named after those of TF-gRPC-Bench; all three have the same mean size.
    """
    least = (options["busy"] or options["clients"]) * options["in_flight"] * comparison.rounds
    # Enough for some seconds.
    fitting = min(200_000, _DEFAULT_BYTES // max(1, options["message_size"]))
    plan = ServePlan(**options, **comparison.of_plan, requests=requests or max(least, fitting))
    measure_and_show(COMMAND, plan, run, comparison)


def _section(record: Record[ServeResult]) -> Section:
    first = record.results[0]
    crowd_size = f"{first.clients} clients"
    if first.busy is not None:
        crowd_size += f", {first.busy} of them busy"
    if first.in_flight > 1:
        crowd_size += f", {first.in_flight} requests each"
    table = Table(
        f"One ps, {crowd_size}, {first.payload} payload of {first.message_size} bytes",
        ["protocol", "requests/s", "MB/s", "latency us p50", "p99", "ps CPU us/request", "threads"],
        [
            [
                [
                    r.protocol,
                    number(r.requests_per_s),
                    number(r.mb_per_s),
                    number(r.latency_us.p50),
                    number(r.latency_us.p99),
                    number(r.ps_cpu_us_per_request),
                    str(r.ps_threads),
                ]
                for r in record.results
            ]
        ],
    )
    crowd = Table(
        f"Cost of {first.clients} clients for the ps",
        [
            "protocol",
            "all connected s",
            "memory KB/client",
            "descriptors/client",
            "fewest/most requests",
            "dead ones gone s",
        ],
        [
            [
                [
                    r.protocol,
                    *(
                        "-" if value is None else number(value)
                        for value in (
                            r.connect_s,
                            None if r.ps_bytes_per_client is None else r.ps_bytes_per_client / 1e3,
                            r.ps_descriptors_per_client,
                            r.fairness,
                            r.disconnect_s,
                        )
                    ),
                ]
                for r in record.results
            ]
        ],
    )
    charts = [
        Bars(
            "Requests a second",
            "/s",
            [Bar(r.protocol, r.requests_per_s, r.protocol) for r in record.results],
        ),
        latency_bars("Time of a request", [(r.protocol, r.latency_us) for r in record.results]),
        Bars(
            "CPU time of the ps for a request",
            "us",
            [Bar(r.protocol, r.ps_cpu_us_per_request, r.protocol) for r in record.results],
        ),
    ]
    headline = compared(record.ratios, f"serves {first.clients} clients")
    return Section("One ps, many clients", headline, charts, [table, crowd])
