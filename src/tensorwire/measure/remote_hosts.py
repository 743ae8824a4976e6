"""An experiment whose tasks are on different hosts; the user starts a command on each.

One host *leads*: it measures, and runs the tasks of its own host as usual. Every other host runs an
*agent*: it listens at its task's address for the leader, and starts the tasks that the leader
requests. For each remote task, the leader runs a local `remote_task` process, which forwards
standard input and output, like a remote shell. So an experiment does not know where its tasks are.

Each address HOST:PORT of --ps-hosts and --worker-hosts is where that host's agent listens. Its
tasks listen at the next higher ports, one for each side of the comparison, and at their data ports.
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

from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError
from tensorwire.lab import Host, LocalCluster, TaskProcess
from tensorwire.lab.channel import Message
from tensorwire.measure.host_pool import SERVING_JOBS, HostPool
from tensorwire.measure.peer import (
    Hello,
    Peer,
    PeerGone,
    accept_peer,
    call_peer,
    installed_tensorflow,
    listening,
)
from tensorwire.measure.task_processes import Watcher, host_argv

RELAY = "relay"
_LEADER = ("worker", 0)
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
    """Addresses "host:port" of the tasks of the jobs ps and worker."""
    job: str
    index: int
    peer_timeout_s: float = 120.0

    @property
    def leads(self) -> bool:
        """True if this host measures; that is the host of the first worker."""
        return (self.job, self.index) == _LEADER

    @property
    def address(self) -> str:
        return self.hosts[self.job][self.index]

    @property
    def hello(self) -> Hello:
        return Hello(self.command, f"{self.job}:{self.index}", installed_tensorflow())


# --- the leader --------------------------------------------------------------------


@dataclass(frozen=True)
class RemoteHost(Host):
    """The host of one remote task, which an agent starts."""

    relay: str = ""
    """JSON: the first argument of `remote_task`."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs a task of this package there; `argv` is that of a task host."""
        module = "tensorwire.measure.remote_task"
        return [sys.executable, "-m", module, self.relay, argv[-1]]


class RemoteHostPool(HostPool):
    """The hosts of an experiment on several hosts, for the leader."""

    is_this_machine = False

    def __init__(self, role: HostRole, sessions: Mapping[str, str]) -> None:
        """`sessions`: by agent's address, the id by which the agent recognizes this call's
        requests.
        """
        super().__init__()
        self._role = role
        self._sessions = sessions
        self._used: Counter[str] = Counter()

    @property
    def have_link(self) -> bool:
        return True

    @property
    def notes(self) -> list[str]:
        hosts = self._role.hosts
        return [f"ps at {', '.join(hosts['ps'])}; worker at {', '.join(hosts['worker'])}"]

    def cluster(self, jobs: Mapping[str, int]) -> LocalCluster:
        return LocalCluster(
            jobs, {job: [self._host(job, i) for i in range(count)] for job, count in jobs.items()}
        )

    def _host(self, job: str, index: int) -> Host:
        agent = self._role.hosts["ps" if job in SERVING_JOBS else "worker"][index]
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
        sessions = {}
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
                sessions[address] = uuid.uuid4().hex
                peer.send({"session": sessions[address]})
                peers.append(peer)
        watcher.activity("starting the tasks")
        yield RemoteHostPool(role, sessions)
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
    leader_at = role.hosts[_LEADER[0]][_LEADER[1]]
    expected = f"worker at {leader_at}"
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


def relay_environment() -> Mapping[str, str]:
    """The variables in this process's environment that an experiment sets for its tasks."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
