"""An experiment whose tasks are on different hosts; the user starts a command on each.

One host *leads*: it measures, and runs the tasks of its own host as usual. Every other host runs an
*agent*: it listens at its task's address for the leader, and starts the tasks that the leader
requests. For each remote task, the leader runs a local `remote_task` process, which forwards
standard input and output, like a remote shell. So an experiment does not know where its tasks are.

Each address HOST:PORT of --ps-hosts and --worker-hosts, or of --target, is where that host's agent
listens. Its tasks listen at the next higher ports, one for each side of the comparison, and at
their data ports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensorwire.bench.frame.host_pool import SERVING_JOBS, HostPool
from tensorwire.bench.frame.peer import (
    Hello,
    Peer,
    PeerGone,
    accept_peer,
    call_peer,
    installed_tensorflow,
    listening,
)
from tensorwire.bench.frame.task_processes import Watcher, host_argv
from tensorwire.bench.lab import Host, LocalCluster, TaskProcess
from tensorwire.bench.lab.channel import Message
from tensorwire.cli.two_ends import CLIENT, SERVER, TwoEnds
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError

RELAY = "relay"
_APART = 100
"""Between the ports of two ends, which may be on one host."""
_POLL_S = 0.2
_ANSWER_S = 30.0
_TASK_NAME = re.compile(r"tensorwire(\.\w+)+:\w+")
# Variables that an experiment sets for its tasks; all others come from the task's own host.
_ENVIRONMENT = ("TENSORWIRE_TRANSPORT", "CUDA_VISIBLE_DEVICES")


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
        hosts: dict[str, Sequence[str]] = {SERVER: (f"localhost:{ends.port}",), CLIENT: ()}
        job = SERVER
        if ends.target is not None:
            host, port = own_address(ends.target), split_address(ends.target)[1]
            hosts, job = {SERVER: (ends.target,), CLIENT: (f"{host}:{port + _APART}",)}, CLIENT
        return HostRole(command, hosts, job, 0, ends.peer_timeout_s, version, settings or {})

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
    """JSON: the first argument of `remote_task`."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs a task of this package there; `argv` is that of a task host."""
        module = "tensorwire.bench.frame.remote_task"
        return [sys.executable, "-m", module, self.relay, argv[-1]]


class RemoteHostPool(HostPool):
    """The hosts of an experiment on several hosts, for the leader."""

    is_this_machine = False

    def __init__(
        self, role: HostRole, sessions: Mapping[str, str], settings: Mapping[str, int]
    ) -> None:
        """`sessions`: by agent's address, the id by which the agent recognizes this call's
        requests. `settings`: what the agents choose.
        """
        super().__init__()
        self.settings = settings
        self._role = role
        self._sessions = sessions
        self._used: Counter[str] = Counter()

    @property
    def have_link(self) -> bool:
        return True

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
            "hello": dataclasses.asdict(dataclasses.replace(self._role.hello, part=RELAY)),
            "start": {"session": self._sessions[agent], "job": job, "index": index, "port": at},
        }
        return RemoteHost(name, port=at, is_this_machine=False, relay=json.dumps(relay))


@contextlib.contextmanager
def lead(role: HostRole, watcher: Watcher) -> Iterator[HostPool]:
    """Connects to all agents and yields the hosts, for a role that leads.

    Raises:
        TensorwireError: an agent was not reached in time, has another version, or another task.
    """
    with contextlib.ExitStack() as stack:
        sessions: dict[str, str] = {}
        settings: dict[str, int] = {}
        peers = []
        for job, addresses in role.hosts.items():
            for index, address in enumerate(addresses):
                if address == role.address:
                    continue
                watcher.activity(f"waiting for the {job} at {address}")
                expected = f"{job} at {address}"
                peer = stack.enter_context(
                    call_peer(address, role.hello, expected, role.peer_timeout_s)
                )
                if peer.hello.part != f"{job}:{index}":
                    raise TensorwireError(
                        f"{address} is {peer.hello.part}, not {job}:{index}: give the same "
                        "--ps-hosts and --worker-hosts on all hosts"
                    )
                settings |= peer.hello.settings
                sessions[address] = uuid.uuid4().hex
                peer.send({"session": sessions[address]})
                peers.append(peer)
        watcher.activity("starting the tasks")
        yield RemoteHostPool(role, sessions, settings)
        for peer in peers:
            peer.send({"done": True})


# --- an agent ----------------------------------------------------------------------


@dataclass
class _Started:
    """A task that runs for the leader."""

    cluster: LocalCluster
    task: TaskProcess
    peer: Peer


@dataclass
class _Session:
    """The state of one measurement in an agent."""

    leader: Peer
    name: str
    started: list[_Started] = field(default_factory=list)


def serve(role: HostRole, watcher: Watcher) -> None:
    """Runs an agent: starts tasks for the leader until the leader is done.

    There is no authentication: any client that reaches the address can start a benchmark's task.
    TensorFlow's own server allows more than that.

    Raises:
        TensorwireError: no leader connected in time, it does not fit, it left too early, or a task
            failed.
    """
    expected = role.leader
    with contextlib.ExitStack() as stack, listening(role.address) as server:
        watcher.activity(f"waiting for the {expected}")
        deadline = time.monotonic() + role.peer_timeout_s
        leader = stack.enter_context(accept_peer(server, role.hello, expected, deadline))
        session = _Session(leader, leader.receive(_ANSWER_S)["session"])
        watcher.activity(f"serving the {expected}")
        while not _is_done(session, expected):
            with contextlib.suppress(PeerGone):
                if (peer := _caller(server, role)) is not None:
                    _start(session, peer, stack)
            _see_ended(session)


def _is_done(session: _Session, expected: str) -> bool:
    if not session.leader.wait(_POLL_S):
        return False
    try:
        return "done" in session.leader.receive(_ANSWER_S)
    except PeerGone:
        raise TensorwireError(f"the {expected} ended before it was done") from None


def _caller(server: socket.socket, role: HostRole) -> Peer | None:
    server.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        stream, (host, port, *_) = server.accept()
        peer = Peer(stream, f"{host}:{port}")
        peer.greet(role.hello)
        return peer
    return None


def _start(session: _Session, peer: Peer, stack: contextlib.ExitStack) -> None:
    """Starts a task whose standard input and output are `peer`'s connection."""
    wanted: Message = peer.receive(_ANSWER_S)
    if wanted.get("session") != session.name or not _TASK_NAME.fullmatch(str(wanted.get("task"))):
        peer.close()
        return
    job, index = str(wanted["job"]), int(wanted["index"])
    cluster = LocalCluster({job: index + 1}, {job: [Host("127.0.0.1", port=int(wanted["port"]))]})
    stack.enter_context(cluster)
    peer.send({})
    peer.set_blocking()
    environment = {name: str(wanted["environment"][name]) for name in wanted["environment"]}
    known = {name: value for name, value in environment.items() if name in _ENVIRONMENT}
    argv = host_argv(wanted["task"])
    task = cluster.start(job, index, argv, env=known, stream=peer.fileno())
    session.started.append(_Started(cluster, task, peer))


def _see_ended(session: _Session) -> None:
    """Reports ended tasks to the leader. Raises if a task failed while it was still in use."""
    for started in tuple(session.started):
        code = started.task.poll()
        if code is None:
            continue
        session.started.remove(started)
        wanted = started.peer.is_open()
        with contextlib.suppress(PeerGone):
            started.peer.send({"ended": code, "log": started.task.tail()})
        started.peer.close()
        if wanted:
            started.cluster.check()


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


def relay_environment() -> Mapping[str, str]:
    """The variables in this process's environment that an experiment sets for its tasks."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
