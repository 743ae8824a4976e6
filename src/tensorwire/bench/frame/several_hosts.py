"""An experiment whose tasks are on different hosts; the user starts a command on each.

One host *leads*: it measures, and runs the tasks of its own host as usual. Every other host runs an
*agent*: it listens at its task's address for the leader, and starts the tasks that the leader
requests. For each remote task, the leader runs a local relay, a process of this module, which
forwards standard input and output, like a remote shell. So an experiment does not know where its
tasks are.

Each address HOST:PORT of --ps-hosts and --worker-hosts, or of --target, is where that host's agent
listens. Its tasks listen at the next higher ports, one for each variant of the comparison, and at
their data ports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import select
import socket
import struct
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import tensorwire
from tensorwire.bench.frame.hosts import SERVING_JOBS, HostPool
from tensorwire.bench.frame.tasks import Watcher, host_argv
from tensorwire.bench.frame.variants import Setting
from tensorwire.bench.lab import Host, LocalCluster, TaskProcess
from tensorwire.bench.lab.channel import Message, TaskEnd
from tensorwire.bench.lab.ports import listen
from tensorwire.cli.options import CLIENT, SERVER, TwoEnds
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError

_RELAY = "relay"
_ANSWER_S = 30.0
_STRANGER_S = 5.0
_POLL_S = 0.2
_APART = 100
"""Between the ports of two ends, which may be on one host."""
_LONGEST_MESSAGE_BYTES = 1 << 20
_TASK_NAME = re.compile(r"tensorwire(\.\w+)+:\w+")
# Variables that an experiment sets for its tasks; all others come from the task's own host.
_ENVIRONMENT = frozenset(Setting("grpc").task_environment())
_STREAM_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # Keepalive detects a host that lost its power.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


class PeerGone(TensorwireError):
    """The other host closed the connection, or cannot be reached any more."""


def token() -> bytes:
    """The secret by which hosts know each other: the job token, if there is one."""
    if name := os.environ.get("TENSORWIRE_TOKEN_FILE"):
        try:
            return Path(name).read_bytes().strip()
        except OSError as error:
            raise TensorwireError(
                f"cannot read TENSORWIRE_TOKEN_FILE {name}: {error.strerror}"
            ) from error
    return os.environ.get("TENSORWIRE_TOKEN", "no token").strip().encode()


@dataclass(frozen=True)
class Hello:
    """The identity of the sender. `part` is its task: "ps:0", "worker:0", "server", "client"."""

    command: str
    part: str
    tensorflow: str | None = None
    """The version of TensorFlow; None if the command does not use TensorFlow."""
    version: str = tensorwire.__version__
    host: str = dataclasses.field(default_factory=platform.node)
    settings: dict[str, int] = dataclasses.field(default_factory=dict)
    """What the sender chooses for its own tasks."""

    def check(self, other: Hello) -> None:
        """Raises TensorwireError if the two cannot measure together; at both ends the same."""
        first, second = sorted((self, other), key=lambda hello: hello.part)
        for name, what, advice in (
            ("command", "commands", "start the same one on both"),
            ("version", "versions of tensorwire", "install the same one on both"),
            ("tensorflow", "versions of TensorFlow", "install the same one on both"),
        ):
            a, b = getattr(first, name), getattr(second, name)
            if a != b:
                raise TensorwireError(
                    f"the hosts have different {what}: {a or 'none'} at {first.part} "
                    f"({first.host}), {b or 'none'} at {second.part} ({second.host}); {advice}"
                )


class Peer:
    """A connection to another host that has proved to know the token. A context manager.

    Messages are JSON, because `Connection.recv` would run what a peer pickled. `hello` is the other
    end's identity.
    """

    def __init__(self, stream: socket.socket, address: str, me: Hello, *, is_server: bool) -> None:
        """Authenticates both ends, and exchanges their identities.

        Raises:
            PeerGone: the other end is not a process of tensorwire, or has another token.
            TensorwireError: the two ends do not fit.
        """
        stream.settimeout(None)
        for level, name, value in _STREAM_OPTIONS:
            stream.setsockopt(level, name, value)
        # A peer that stops within a message must not stop us.
        _set_deadlines(stream, _STRANGER_S)
        self.address = address
        self._connection = Connection(stream.detach())
        self.hello = Hello("", "peer")
        prove = [deliver_challenge, answer_challenge]
        try:
            for step in prove if is_server else reversed(prove):
                step(self._connection, token())
            self.send(dataclasses.asdict(me))
            self.hello = Hello(**self.receive(_STRANGER_S))
        except AuthenticationError as error:
            self.close()
            raise PeerGone(
                f"the process at {address} is not `tensorwire {me.command}`, or has another job "
                "token (TENSORWIRE_TOKEN_FILE)"
            ) from error
        except (OSError, EOFError, ValueError, TypeError, AssertionError, TensorwireError) as error:
            self.close()
            raise PeerGone(f"the process at {address} is not `tensorwire {me.command}`") from error
        me.check(self.hello)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def fileno(self) -> int:
        """The descriptor; between two messages no byte is buffered."""
        return self._connection.fileno()

    @property
    def name(self) -> str:
        return f"{self.hello.part} at {self.address}"

    def send(self, message: Message) -> None:
        """Sends a message. Raises PeerGone."""
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise self._gone() from error

    def receive(self, timeout_s: float) -> Message:
        """The next message.

        Raises:
            PeerGone: the connection has ended.
            TensorwireError: no message arrived within `timeout_s`, or it is not a JSON object.
        """
        if not self.wait(timeout_s):
            raise TensorwireError(f"{self.name} did not answer within {timeout_s:g} s")
        try:
            message = json.loads(self._connection.recv_bytes(_LONGEST_MESSAGE_BYTES))
        except (OSError, EOFError) as error:
            raise self._gone() from error
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise TensorwireError(f"{self.name} sent an invalid message")
        return message

    def wait(self, timeout_s: float) -> bool:
        """Waits until `receive` can read data or the end of the stream; False after `timeout_s`."""
        return self._connection.poll(timeout_s)

    def _gone(self) -> PeerGone:
        return PeerGone(f"{self.name} ended before it was done")


def call_peer(address: str, me: Hello, expected: str, timeout_s: float) -> Peer:
    """Connects to `address` until the other end answers.

    Args:
        expected: the expected peer, for the error message: "worker at host2:12222".

    Raises:
        TensorwireError: no peer answered in time, or the peer does not match.
    """
    host, port = split_address(address)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            stream = socket.create_connection((host, port), timeout=_STRANGER_S)
            return Peer(stream, address, me, is_server=False)
        except (OSError, PeerGone) as error:
            if time.monotonic() > deadline:
                reason = str(error) if isinstance(error, PeerGone) else error.strerror or str(error)
                raise TensorwireError(
                    f"no {expected} after {timeout_s:g} s ({reason}): start it there with the same "
                    "flags, and check that the port is open"
                ) from error
        time.sleep(_POLL_S)


def accept_peer(server: socket.socket, me: Hello, expected: str, deadline: float) -> Peer:
    """Waits at a listening socket until the other end has greeted; arguments as `call_peer`.

    Args:
        deadline: a time of time.monotonic().
    """
    began = time.monotonic()
    while time.monotonic() < deadline:
        # Strangers, such as port scans and health checks, are ignored.
        with contextlib.suppress(PeerGone):
            if select.select([server], [], [], _POLL_S)[0]:
                return _accepted(server, me)
    raise TensorwireError(
        f"the {expected} did not connect to port {server.getsockname()[1]} within "
        f"{deadline - began:.3g} s: start it there with the same flags, and check that this port "
        "can be reached from there"
    )


def _accepted(server: socket.socket, me: Hello) -> Peer:
    stream, (host, port, *_) = server.accept()
    return Peer(stream, f"{host}:{port}", me, is_server=True)


def installed_tensorflow() -> str | None:
    """The version of the installed TensorFlow, without importing it; None if there is none."""
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow_cpu", "tf-nightly"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


@dataclass(frozen=True)
class HostRole:
    """The role of this host in an experiment on several hosts."""

    command: str
    hosts: Mapping[str, Sequence[str]]
    """Addresses "host:port" of the tasks of two jobs: of ps, or a server; of workers, or a client.
    The first task of the second job leads; the others need not know its address.
    """
    job: str
    index: int
    peer_timeout_s: float = 120.0
    tensorflow: str | None = field(default_factory=installed_tensorflow)
    """The version that all hosts must have; None: the experiment does not use TensorFlow."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """What this host chooses for its tasks."""

    @staticmethod
    def of_ends(
        command: str,
        ends: TwoEnds,
        settings: Mapping[str, int] | None = None,
        *,
        needs_tensorflow: bool = False,
    ) -> HostRole:
        """The role of this host in an experiment between a server and a client, which leads."""
        version = installed_tensorflow() if needs_tensorflow else None
        hosts: dict[str, Sequence[str]] = {SERVER: (f":{ends.port}",), CLIENT: ()}
        job = SERVER
        if ends.target is not None:
            host, port = own_address(ends.target), split_address(ends.target)[1]
            hosts, job = {SERVER: (ends.target,), CLIENT: (f"{host}:{port + _APART}",)}, CLIENT
        return HostRole(command, hosts, job, 0, ends.timeout_s, version, settings or {})

    @property
    def leads(self) -> bool:
        """True if this host measures."""
        return (self.job, self.index) == ([*self.hosts][1], 0)

    @property
    def leader(self) -> str:
        """The leader, for people: "worker at host2:12222"."""
        job, addresses = [*self.hosts.items()][1]
        return f"{job} at {addresses[0]}" if addresses else job

    @property
    def address(self) -> str:
        return self.hosts[self.job][self.index]

    @property
    def hello(self) -> Hello:
        part = f"{self.job}:{self.index}"
        return Hello(self.command, part, self.tensorflow, settings=dict(self.settings))


# --- the leader --------------------------------------------------------------------


@dataclass(frozen=True)
class RemoteHost(Host):
    """The host of one remote task, which an agent starts."""

    relay: str = ""
    """JSON: {"agent": address, "hello", "start"}, for `_relay`."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs a task of this package there; `argv` is that of a task host."""
        return [sys.executable, "-m", __name__, self.relay, argv[-1]]


class RemoteHostPool(HostPool):
    """The hosts of an experiment on several hosts, for the leader."""

    is_this_machine = False

    have_link = True

    def __init__(self, role: HostRole) -> None:
        super().__init__()
        self.settings: dict[str, int] = {}
        self.session = uuid.uuid4().hex
        """The id by which the agents recognize this call's requests."""
        self._role = role
        self._used: Counter[str] = Counter()

    @property
    def notes(self) -> list[str]:
        places = [f"{job} at {', '.join(of_job)}" for job, of_job in self._role.hosts.items()]
        return ["; ".join(places)]

    def cluster(self, jobs: Mapping[str, int]) -> LocalCluster:
        return LocalCluster(
            jobs, {job: [self._host(job, i) for i in range(count)] for job, count in jobs.items()}
        )

    def _host(self, job: str, index: int) -> Host:
        serving, leading = self._role.hosts.values()
        agent = (serving if job in SERVING_JOBS else leading)[index]
        name, port = agent.rpartition(":")[0], split_address(agent)[1]
        self._used[agent] += 1
        at = port + self._used[agent]
        if agent == self._role.address:
            return Host(name, port=at)
        relay = {
            "agent": agent,
            "hello": dataclasses.asdict(dataclasses.replace(self._role.hello, part=_RELAY)),
            "start": {"session": self.session, "job": job, "index": index, "port": at},
        }
        return RemoteHost(name, port=at, is_this_machine=False, relay=json.dumps(relay))


@contextlib.contextmanager
def lead(role: HostRole, watcher: Watcher) -> Iterator[HostPool]:
    """Connects to all agents and yields the hosts, for a role that leads.

    Raises:
        TensorwireError: an agent was not reached in time, has another version, or another task.
    """
    pool, peers = RemoteHostPool(role), []
    with contextlib.ExitStack() as stack:
        for job, addresses in role.hosts.items():
            for index, address in enumerate(addresses):
                if address == role.address:
                    continue
                expected = f"{job} at {address}"
                watcher.activity(f"waiting for the {expected}")
                peer = call_peer(address, role.hello, expected, role.peer_timeout_s)
                peers.append(stack.enter_context(peer))
                if peer.hello.part != f"{job}:{index}":
                    raise TensorwireError(
                        f"{address} is {peer.hello.part}, not {job}:{index}: give the same "
                        "--ps-hosts and --worker-hosts on all hosts"
                    )
                pool.settings |= peer.hello.settings
                peer.send({"session": pool.session})
        watcher.activity("starting the tasks")
        yield pool
        for peer in peers:
            peer.send({"done": True})


def own_address(target: str) -> str:
    """This host's address on the route to "host:port"; sends nothing."""
    host, port = split_address(target)
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own: str = probe.getsockname()[0]
    except OSError:
        return "localhost"  # the target is not reached either, which is reported later
    return f"[{own}]" if ":" in own else own


# --- an agent ----------------------------------------------------------------------


@dataclass
class _Started:
    """A task that runs for the leader."""

    cluster: LocalCluster
    task: TaskProcess
    relay: Peer


def serve(role: HostRole, watcher: Watcher) -> None:
    """Runs an agent: starts tasks for the leader until the leader is done.

    Without a job token, any client that reaches the address can start a benchmark's task, as
    TensorFlow's own server allows even more.

    Raises:
        TensorwireError: no leader connected in time, it does not fit, it left too early, or a task
            failed.
    """
    expected = role.leader
    with contextlib.ExitStack() as stack, listen(role.address) as server:
        watcher.activity(f"waiting for the {expected}")
        deadline = time.monotonic() + role.peer_timeout_s
        leader = stack.enter_context(accept_peer(server, role.hello, expected, deadline))
        session = leader.receive(_ANSWER_S)["session"]
        watcher.activity(f"serving the {expected}")
        started: list[_Started] = []
        while True:
            readable, _, _ = select.select([leader.fileno(), server.fileno()], [], [], _POLL_S)
            if server.fileno() in readable:
                with contextlib.suppress(PeerGone):
                    if (task := _start(session, _accepted(server, role.hello), stack)) is not None:
                        started.append(task)
            started = [each for each in started if not _has_ended(each)]
            try:
                if leader.fileno() in readable and "done" in leader.receive(_ANSWER_S):
                    return
            except PeerGone:
                raise TensorwireError(f"the {expected} ended before it was done") from None


def _start(session: str, relay: Peer, stack: contextlib.ExitStack) -> _Started | None:
    """Starts a task whose standard input and output are the relay's connection from now on."""
    wanted = relay.receive(_ANSWER_S)
    if wanted.get("session") != session or not _TASK_NAME.fullmatch(str(wanted.get("task"))):
        relay.close()
        return None
    job, index = str(wanted["job"]), int(wanted["index"])
    cluster = LocalCluster({job: index + 1}, {job: [Host("127.0.0.1", port=int(wanted["port"]))]})
    stack.enter_context(cluster)
    relay.send({})
    _give_up_deadlines(relay)
    env = {name: str(v) for name, v in wanted["environment"].items() if name in _ENVIRONMENT}
    task = cluster.start(job, index, host_argv(wanted["task"]), env, stream=relay.fileno())
    return _Started(cluster, task, relay)


def _give_up_deadlines(peer: Peer) -> None:
    """For a connection that becomes the standard input and output of a task."""
    with socket.socket(fileno=os.dup(peer.fileno())) as stream:
        _set_deadlines(stream, 0)


def _set_deadlines(stream: socket.socket, seconds: float) -> None:
    """For each single `recv` and `send`; 0: none."""
    for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        stream.setsockopt(socket.SOL_SOCKET, name, struct.pack("@ll", int(seconds), 0))


def _has_ended(started: _Started) -> bool:
    """Reports an ended task to its relay. Raises if it failed while the leader still wanted it."""
    if (code := started.task.poll()) is None:
        return False
    with socket.socket(fileno=os.dup(started.relay.fileno())) as stream:
        try:
            wanted = stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except OSError as error:
            wanted = isinstance(error, BlockingIOError)
        ended = json.dumps({"ended": code, "log": started.task.tail()})
        with contextlib.suppress(OSError):
            stream.sendall(ended.encode() + b"\n")
    started.relay.close()
    if wanted:
        started.cluster.check()
    return True


# --- the relay of one remote task --------------------------------------------------


def _relay(where: str, task: str) -> int:
    """Represents a task on another host; returns its exit status, after the end of its log.

    What comes in at standard input goes to that task, and each line of the task is printed here.

    Args:
        where: `RemoteHost.relay`.
        task: as for `task_host`.
    """
    end = TaskEnd()
    wanted = json.loads(where)
    agent = wanted["agent"]
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    try:
        peer = call_peer(agent, Hello(**wanted["hello"]), f"agent at {agent}", _ANSWER_S)
        peer.send({**wanted["start"], "task": task, "environment": environment})
        peer.receive(_ANSWER_S)
    except TensorwireError as error:
        end.send({"error": str(error)})
        return 1
    _give_up_deadlines(peer)
    stream = socket.socket(fileno=os.dup(peer.fileno()))
    threading.Thread(target=_forward, args=(stream,), daemon=True).start()
    for line in stream.makefile("rb"):
        message = json.loads(line)
        if "ended" in message:
            sys.stderr.write(message["log"])
            return int(message["ended"]) % 256
        end.send(message)
    sys.stderr.write(f"the agent at {agent} has ended\n")
    return 1


def _forward(stream: socket.socket) -> None:
    try:
        while data := os.read(0, 1 << 16):
            stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other direction reports the reason


if __name__ == "__main__":
    code = _relay(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a thread still waits for standard input
