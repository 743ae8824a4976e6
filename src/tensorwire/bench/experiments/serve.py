"""`bench serve`: how many requests per second one ps answers for many clients.

The ps is a normal TensorFlow server. Before each round its rendezvous gets a tensor for every
request of the round, so a request costs only the service and no graph execution. Each client has
its own TCP connection and requests the next tensor when it has received one. On gRPC the clients
are TensorFlow's own, as its worker cache creates them; on grpc++ they are the plug-in's. All
clients share one process with the threads of one worker, to leave enough CPU for the ps. The
measured code is C++ (native/tensorflow/bench); Python only starts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import psutil

from tensorwire.bench.experiments.tensors import GRPCPP, ClusterVariant, PluginTask
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.columns import Column, LatencyUs, table
from tensorwire.bench.frame.experiment import Case, Experiment, Variant
from tensorwire.bench.frame.hosts import HostPool
from tensorwire.bench.frame.options import experiment_command
from tensorwire.bench.frame.record import Record, Result, words
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.tasks import REQUEST_TIMEOUT_S, Watcher, patience_s, request
from tensorwire.bench.frame.variants import Setting
from tensorwire.bench.lab.channel import Message
from tensorwire.bench.lab.ports import CLOSE_WAIT, ESTABLISHED, tcp_sockets
from tensorwire.engine import Library, data_port, native_folder
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.report.section import Section

PAYLOADS = ("uniform", "random", "skewed")
MOST_BYTES = 1 << 30
_SKEWED_PARTS = np.array([0.1, 1.0, 6.4])
_SKEWED_SHARES = (0.6, 0.3, 0.1)
_WARM_UP_REQUESTS = 2000
_DISCONNECT_TIMEOUT_S = 60.0
# Descriptors of a TensorFlow task other than its connections; about ten times the real number.
_OTHER_DESCRIPTORS = 500
_MOST_CLIENTS = 20_000
_DEFAULT_BYTES = 5_000_000_000
_UNIX_CONNECTED = "03"  # in /proc/net/unix

Sizes: TypeAlias = npt.NDArray[np.int64]


def payload_sizes(payload: str, message_size: int, count: int, seed: int) -> Sizes:
    """Bytes of each of `count` tensors, int64 [count]; deterministic in the arguments.

    Args:
        payload: "uniform": each has `message_size` bytes; "random": from 1 to 2 * `message_size` -
            1 bytes, all equally likely; "skewed": six of ten have a tenth of `message_size`, three
            have `message_size`, and one has 6.4 times `message_size`.
    """
    random = np.random.default_rng(seed)
    if payload == "uniform":
        return np.full(count, message_size, dtype=np.int64)
    if payload == "random":
        return random.integers(1, 2 * message_size, size=count, dtype=np.int64)
    if payload == "skewed":
        sizes = np.maximum(1, np.rint(_SKEWED_PARTS * message_size)).astype(np.int64)
        return random.choice(sizes, p=_SKEWED_SHARES, size=count)
    raise ValueError(f"unknown payload: {payload}")


class _Asked(ctypes.Structure):
    """The structure tensorwire_bench_asked of serve.h."""

    _fields_ = (("seconds", ctypes.c_double), ("bytes", ctypes.c_int64))


class _ServeTask(PluginTask):
    def __init__(self, descriptors: int) -> None:
        _allow_descriptors(descriptors)
        super().__init__(needs_plugin=False)
        from tensorwire.plugin import build, loader

        source = dataclasses.replace(
            build.packaged_source(),
            folder=native_folder() / "bench",
            name="tensorwire_bench.so",
            what="the native part of bench serve",
            prebuilt=None,
            plugin=loader.load(),
            plugin_headers=(build.packaged_source().folder,),
        )
        path = build.ensure_built(source=source)
        self._library = Library(path, "tensorwire_bench_")  # native/tensorflow/bench/serve.h


class PsTask(_ServeTask):
    """A server with the tensors that its clients will request."""

    def __init__(self, protocol: str, descriptors: int, spec: Mapping[str, Sequence[str]]) -> None:
        super().__init__(descriptors)
        train = self._tf.train
        cluster = train.ClusterSpec(dict(spec)).as_cluster_def()
        server_def = train.ServerDef(
            cluster=cluster, job_name="ps", task_index=0, protocol=protocol
        )
        data = server_def.SerializeToString()
        self._incarnation = ctypes.c_uint64()
        self._library.call("start_ps", data, len(data), ctypes.byref(self._incarnation))

    def ready(self) -> Message:
        """Also the incarnation of the server's device, which is part of every rendezvous key."""
        return {**super().ready(), "incarnation": self._incarnation.value}

    @request
    def fill(self, step: int, payload: str, message_size: int, count: int) -> Message:
        """Makes the tensors of a step; their sizes depend only on the arguments."""
        sizes = payload_sizes(payload, message_size, count, seed=step)
        self._library.call("fill", step, sizes, count)
        return {"bytes": int(sizes.sum())}


class ClientsTask(_ServeTask):
    """Clients that send the next request as soon as one is answered."""

    def __init__(self, protocol: str, descriptors: int) -> None:
        super().__init__(descriptors)
        self._protocol = protocol
        self._clients = 0

    @request
    def connect(self, address: str, clients: int, incarnation: int) -> Message:
        """Makes the clients; each connects with its first request."""
        self._clients = clients
        self._library.call("connect", self._protocol, address, clients, incarnation)
        return {}

    @request
    def run(self, step: int, count: int, busy: int, in_flight: int, patience_s: float) -> Message:
        """Requests `count` tensors, by the first `busy` clients.

        Returns the seconds, the bytes, the latency of each request, and the requests of each
        client.
        """
        asked = _Asked()
        latency_us = np.empty(count, dtype=np.float32)
        answers = np.empty(self._clients, dtype=np.int64)
        found = (ctypes.byref(asked), latency_us, answers)
        self._library.call("ask", step, count, busy, in_flight, patience_s, *found)
        return {
            "seconds": asked.seconds,
            "bytes": asked.bytes,
            "latency_us": np.rint(latency_us).astype(int).tolist(),
            "answers": answers.tolist(),
        }


def _allow_descriptors(count: int) -> None:
    """Raises this process's soft limit to `count`; its starter has checked the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@dataclass(frozen=True)
class ServeResult(Result):
    """`bench serve`: one protocol, one ps and many clients."""

    commands = ("bench serve",)
    more_rounds_by = "--requests"
    figure = "requests_per_s"
    does = words("serves {0.clients} clients")

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
    requests_per_s: Annotated[float, Column("requests/s", "/s", chart="Requests a second")]
    mb_per_s: Annotated[float, Column("MB/s", "MB/s")]
    latency_us: Annotated[LatencyUs, Column("latency us", chart="Time of a request")]
    ps_cpu_us_per_request: Annotated[
        float, Column("ps CPU us/request", "us", chart="CPU time of the ps for a request")
    ]
    """CPU time of the ps's process."""
    ps_threads: Annotated[int, Column("threads")]
    connect_s: Annotated[float | None, Column("all connected s", aside=True)] = None
    """Seconds until every client had connected and had its first answer."""
    ps_bytes_per_client: Annotated[
        float | None, Column("memory KB/client", divisor=1e3, aside=True)
    ] = None
    """Growth of the ps's resident memory while the clients connected, divided by their number."""
    ps_descriptors_per_client: Annotated[float | None, Column("descriptors/client", aside=True)] = (
        None
    )
    fairness: Annotated[float | None, Column("fewest/most requests", aside=True)] = None
    """Number of requests of the slowest client divided by that of the fastest client."""
    busy: int | None = None
    """Number of clients that send requests; None: all of them."""
    disconnect_s: Annotated[float | None, Column("dead ones gone s", aside=True)] = None
    """Seconds from the death of the clients' process until the ps had closed its connections."""

    @property
    def title(self) -> str:
        busy = "" if self.busy is None else f", {self.busy} of them busy"
        each = f", {self.in_flight} requests each" if self.in_flight > 1 else ""
        payload = f"{self.payload} payload of {self.message_size} bytes"
        return f"One ps, {self.clients} clients{busy}{each}, {payload}"

    @property
    def of(self) -> str:
        busy = "" if self.busy is None else f", {self.busy} of them busy,"
        clients = f"{self.clients} clients{busy} with {self.in_flight} request(s)"
        return f"One ps, {clients}, {self.payload} payload of {self.message_size} bytes"

    @classmethod
    def section(cls, record: Record[Any]) -> Section:
        shown = super().section(record)
        cost = f"Cost of {record.results[0].clients} clients for the ps"
        crowd = table(cost, record.results, {}, aside=True)
        return dataclasses.replace(shown, tables=[*shown.tables, crowd])


@dataclass(frozen=True, kw_only=True)
class Serve(Experiment[None, ServeResult]):
    """Ask one ps for tensors from many clients: requests a second, and their latency.

    Payloads are named after those of TF-gRPC-Bench; all three have the same mean size.
    """

    command = "bench serve"
    takes = frozenset({"protocols", "lab", "transport"})

    clients: int = option(
        64, "Clients, each with its own connection to the ps.", least=1, most=_MOST_CLIENTS
    )
    busy: int | None = option(
        None,
        "Number of clients that send requests; the others only stay connected.  [default: all]",
        least=1,
    )
    message_size: int = option(4096, "Mean size of a tensor in bytes.", least=1, most=MOST_BYTES)
    payload: str = option(
        "uniform",
        "uniform: all tensors have this size; random: from 1 byte to twice the size, each size "
        "equally likely; skewed: of ten tensors, six have 0.1 times the size, three have the size, "
        "one has 6.4 times the size.",
        choices=PAYLOADS,
    )
    in_flight: int = option(1, "Requests that a client keeps in flight.", least=1)
    requests: int | None = option(
        None,
        "Measured requests of each protocol.  [default: 200000; fewer where tensors are large]",
        least=1,
    )
    """Over all rounds."""

    def __post_init__(self) -> None:
        if self.senders > self.clients:
            raise UsageError(f"--busy {self.busy}: give a number from 1 to {self.clients}")
        least = self.rounds * self.senders * self.in_flight
        if self.requests is not None and self.requests < least:
            raise UsageError(
                f"--requests {self.requests} is less than one request per round and client: "
                f"give at least {least}"
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
    def cases(self) -> list[Case[None]]:
        least = self.rounds * self.senders * self.in_flight
        # Enough for some seconds.
        fitting = min(200_000, _DEFAULT_BYTES // self.message_size)
        shares = statistics.split(self.requests or max(least, fitting), self.rounds)
        return [Case(f"{self.clients} clients", None, shares)]

    def variants(self, hosts: HostPool) -> Sequence[Variant[None, ServeResult]]:
        return [ServeVariant(each, self, hosts) for each in self.settings]


class ServeVariant(ClusterVariant[None, ServeResult]):
    """One ps and its clients, for one protocol."""

    def __init__(self, setting: Setting, plan: Serve, hosts: HostPool) -> None:
        super().__init__(setting, {"ps": PsTask, "clients": ClientsTask}, hosts)
        self._plan = plan
        self._step = 0
        self._latency_us: list[list[int]] = []
        self._ps_cpu_s = 0.0
        self._bytes = 0
        self._answers = np.zeros(plan.clients, dtype=np.int64)

    def setup(self, job: str, index: int) -> Message:
        clients = self._plan.clients
        setup = {"protocol": self.protocol, "descriptors": clients + _OTHER_DESCRIPTORS}
        if job == "clients":
            return setup
        # Addresses of workers that do not exist: the ps sizes its thread pools by the number of
        # tasks. No task listens at these addresses or connects to them.
        workers = [f"127.0.0.1:{1024 + index}" for index in range(clients)]
        return {**setup, "spec": {"ps": self.cluster.spec["ps"], "worker": workers}}

    @property
    def _port(self) -> int:
        port = int(self.address("ps").rpartition(":")[2])
        return data_port(port) if self.protocol == GRPCPP else port

    def wait_started(self, watcher: Watcher) -> None:
        """Returns when the ps runs and the clients have connected."""
        super().wait_started(watcher)
        host = self.address("ps").rpartition(":")[0]
        self.ask(
            "clients",
            "connect",
            address=f"{host}:{self._port}",
            clients=self._plan.clients,
            incarnation=self.ready["ps:0"]["incarnation"],
        )
        self._connect()

    def _connect(self) -> None:
        """Connects every client by its first request, and measures the cost for the ps."""
        clients = self._plan.clients
        ps = psutil.Process(self.process("ps").pid)
        bytes_to_come = self._fill(clients)
        descriptors = ps.num_fds()
        resident_bytes = ps.memory_info().rss
        self._connect_s = float(self._ask_for(clients, bytes_to_come, clients)["seconds"])
        self._ps_bytes_per_client = (ps.memory_info().rss - resident_bytes) / clients
        self._ps_descriptors_per_client = (ps.num_fds() - descriptors) / clients

    def _disconnect_s(self) -> float:
        """Kills the clients; returns seconds until the ps has closed their connections."""
        ps = self.process("ps").pid
        begin = time.perf_counter()
        self.process("clients").stop()
        while left := connections_from(self._port, ps) + lanes_at(ps):
            if time.perf_counter() - begin > _DISCONNECT_TIMEOUT_S:
                raise TensorwireError(
                    f"{left} connections of dead clients are open at the ps of {self.protocol} "
                    f"after {_DISCONNECT_TIMEOUT_S:.0f} s"
                )
            time.sleep(0.005)
        return time.perf_counter() - begin

    def warm_up(self, what: None) -> None:
        """Runs requests until every client has been answered.

        Raises:
            TensorwireError: some clients share a connection.
        """
        self._run(max(_WARM_UP_REQUESTS, 2 * self._plan.senders * self._plan.in_flight))
        connections = connections_to(self._port, self.process("clients").pid)
        connections += lanes_at(self.process("ps").pid)
        if connections < self._plan.clients:
            raise TensorwireError(
                f"{self._plan.clients} clients of {self.protocol} share {connections} connections: "
                "their results are invalid"
            )

    def block(self, what: None, requests: int | None) -> list[float]:
        count = requests or 1
        cpu_s = self.ask("ps", "cpu")["cpu_s"]
        asked = self._run(count)
        self._ps_cpu_s += self.ask("ps", "cpu")["cpu_s"] - cpu_s
        self._latency_us.append(asked["latency_us"])
        self._bytes += asked["bytes"]
        self._answers += np.asarray(asked["answers"])
        return [asked["seconds"] / count]

    def _run(self, requests: int) -> Message:
        return self._ask_for(requests, self._fill(requests), self._plan.senders)

    def _fill(self, requests: int) -> int:
        """Puts a tensor into the ps for each coming request; returns their total bytes."""
        plan = self._plan
        self._step += 1
        filled = self.ask(
            "ps",
            "fill",
            step=self._step,
            payload=plan.payload,
            message_size=plan.message_size,
            count=requests,
        )
        return int(filled["bytes"])

    def _ask_for(self, requests: int, bytes_to_come: int, senders: int) -> Message:
        plan = self._plan
        timeout_s = patience_s(requests=requests, moved_bytes=bytes_to_come)
        asked = self.ask(
            "clients",
            "run",
            timeout_s + REQUEST_TIMEOUT_S,
            step=self._step,
            count=requests,
            busy=senders,
            in_flight=plan.in_flight,
            patience_s=timeout_s,
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
            latency_us=statistics.percentiles(LatencyUs, self._latency_us),
            ps_cpu_us_per_request=self._ps_cpu_s / requests * 1e6,
            ps_threads=int(self.ask("ps", "cpu")["threads"]),
            connect_s=self._connect_s,
            ps_bytes_per_client=self._ps_bytes_per_client,
            ps_descriptors_per_client=self._ps_descriptors_per_client,
            fairness=float(answers.min() / answers.max()),
            busy=plan.busy,
            disconnect_s=self._disconnect_s(),
        )


def connections_to(port: int, pid: int) -> int:
    """Number of established connections to a remote port, in the network of process `pid`."""
    return sum(remote == port and state == ESTABLISHED for _, remote, state in tcp_sockets(pid))


def connections_from(port: int, pid: int) -> int:
    """Number of connections at a local port, not yet closed, in the network of process `pid`."""
    states = (ESTABLISHED, CLOSE_WAIT)
    return sum(local == port and state in states for local, _, state in tcp_sockets(pid))


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


command = experiment_command(
    Serve,
    """
  tensorwire bench serve
  tensorwire bench serve --clients 256 --message-size 65536 --payload skewed --json serve.json""",
    tasks="one",
)
