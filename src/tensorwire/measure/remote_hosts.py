"""An experiment whose tasks are on different hosts, each started there by hand.

One end *leads*: it measures, and runs the tasks of its own host as ever. Every other is an *agent*:
it waits at its task's address for the leader, and starts on its host what the leader asks for. A
task there looks to the leader like one of its own: a `remote_task` stands for it here, a process
whose standard input and output are the other task's, as with a remote shell. So an experiment does
not know where its tasks are.

An address HOST:PORT of --ps-hosts or --worker-hosts is where the agent waits; its tasks listen at
the ports above, one for each side of the comparison, and at their data ports.
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
# What an experiment sets for its tasks; all else is as the task's own host has it.
_ENVIRONMENT = ("TENSORWIRE_TRANSPORT", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class HostRole:
    """The role of this host in an experiment on several hosts."""

    command: str
    hosts: Mapping[str, Sequence[str]]
    """Addresses "host:port" of the jobs ps and worker, by task."""
    job: str
    index: int
    peer_timeout_s: float = 120.0

    @property
    def leads(self) -> bool:
        """True if this host measures: the host of the first worker does."""
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
    """The host of one task, where an agent starts it."""

    relay: str = ""
    """JSON: what `remote_task` has to know."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """Runs a task of this package there; `argv` is that of a task host."""
        module = "tensorwire.measure.remote_task"
        return [sys.executable, "-m", module, self.relay, argv[-1]]


class RemoteHostPool(HostPool):
    """The hosts of a HostRole that leads."""

    is_this_machine = False

    def __init__(self, role: HostRole, sessions: Mapping[str, str]) -> None:
        """`sessions`: by agent's address what proves to it that a request is of this call."""
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
    """The hosts of a role that leads, once every agent has come.

    Raises:
        TensorwireError: one did not come in time, does not fit, or is not what its address says.
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
                        f"at {address} is {peer.hello.part} and not {job}:{index}: give the same "
                        "--ps-hosts and --worker-hosts everywhere"
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
    """The state of one measurement, as its leader requested it."""

    leader: Peer
    name: str
    started: list[_Started] = field(default_factory=list)


def serve(role: HostRole, watcher: Watcher) -> None:
    """Starts what the leader asks for, until it says that it is done.

    Whoever can reach the address can have a benchmark's task started, which is no more than
    TensorFlow's own server allows.

    Raises:
        TensorwireError: no leader came in time, it does not fit, it went too early, or a task
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
    """Tells the leader of tasks that ended, and raises when one failed that was still wanted."""
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
    """The variables of this process's environment that an experiment sets for its tasks."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
