"""The two ends of a measurement without TensorFlow, on this machine, a lab, or real hosts.

The measuring code talks to an `End` and does not know where that is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tensorwire.cluster import data_port, split_address
from tensorwire.errors import TensorwireError
from tensorwire.lab import LocalCluster
from tensorwire.lab import TaskProcess as Process
from tensorwire.lab.channel import Message
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.hosted_task import HostedTask
from tensorwire.measure.peer import Hello, Peer, await_peer, call_peer
from tensorwire.measure.task_processes import TaskProcesses, Watcher, ask, wait_ready

DEFAULT_PORT = 12222
SERVER, CLIENT = "server", "client"
_PATIENCE_S = 120.0
_START_TIMEOUT_S = 600.0  # starting may include compiling
_ANSWER_SLACK_S = 10.0
# Time for the client's own part of a round. If its host dies, the connection ends much earlier.
_LONGEST_SILENCE_S = 3600.0


class End(Protocol):
    """A server or a client that answers messages."""

    def ask(self, message: Message, timeout_s: float = _PATIENCE_S) -> Message:
        """Sends a message and returns the answer. Raises TensorwireError on failure or timeout."""


@dataclass(frozen=True)
class LocalEnd:
    """An end that is a process of this machine."""

    cluster: LocalCluster
    process: Process

    def ask(self, message: Message, timeout_s: float = _PATIENCE_S) -> Message:
        return ask(self.cluster, self.process, message, timeout_s)


@dataclass(frozen=True)
class RemoteEnd:
    """An end that the other host has started for this host."""

    peer: Peer
    name: str

    def ask(self, message: Message, timeout_s: float = _PATIENCE_S) -> Message:
        self.peer.send({"to": self.name, "message": message, "timeout_s": timeout_s})
        reply = self.peer.receive(timeout_s + _ANSWER_SLACK_S)
        if "error" in reply:
            raise TensorwireError(f"{self.peer.name}: {reply['error']}")
        return reply


class RawProcesses(TaskProcesses):
    """Tasks of one kind, one per job, on this machine or on hosts of a lab."""

    def __init__(
        self,
        kind: type[HostedTask],
        setups: Mapping[str, Message],
        host_pool: HostPool = THIS_MACHINE,
    ) -> None:
        """`setups`: the constructor's arguments of each job's task."""
        super().__init__(host_pool.cluster(dict.fromkeys(setups, 1)))
        self._kind = kind
        self._setups = setups

    def _start(self) -> None:
        for job, setup in self._setups.items():
            self._start_task(job, self._kind, setup)

    def wait_started(self, watcher: Watcher) -> dict[str, Message]:
        """The ready message of each process. They were all started before, so they start in
        parallel.
        """
        return {
            job: wait_ready(self._cluster, process, watcher)
            for job, process in self._processes.items()
        }

    def end(self, job: str) -> LocalEnd:
        return LocalEnd(self._cluster, self._processes[job])


@dataclass(frozen=True)
class Target:
    """The address of the other host's server, "host:port", and the time to wait for it."""

    address: str
    peer_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Raises UsageError if the address is not host:port."""
        split_address(self.address)


def port_of(protocol: str, port: int) -> int:
    """The port of a protocol for one address: grpc++ and iperf3 use the data port."""
    return port if protocol in ("grpc", "tcp") else data_port(port)


@contextlib.contextmanager
def remote_server(
    command: str, target: Target, wants: Message, watcher: Watcher
) -> Iterator[tuple[Message, Peer]]:
    """The connection to the other host's server, and the server's answer to `wants`.

    Raises:
        TensorwireError: the server cannot be reached in time, or its version does not fit.
    """
    watcher.activity(f"waiting for the server at {target.address}")
    expected = f"server at {target.address}"
    with call_peer(target.address, Hello(command, CLIENT), expected, target.peer_timeout_s) as peer:
        yield RemoteEnd(peer, "start").ask(wants, _START_TIMEOUT_S), peer
        peer.send({"to": None})


def serve_remote(
    command: str,
    port: int,
    peer_timeout_s: float,
    start: Callable[[Message], tuple[Message, Mapping[str, End]]],
    watcher: Watcher,
) -> None:
    """The other host's server: answers a client until the client is done.

    `start` gets the client's first message. It returns the answer, and the ends by name.

    Raises:
        TensorwireError: no client connected in time, it left too early, or an end failed.
    """
    watcher.activity(f"waiting for a client at port {port}")
    address = f"localhost:{port}"
    with await_peer(address, Hello(command, SERVER), "client", peer_timeout_s) as peer:
        watcher.activity(f"serving {peer.name}")
        ends: Mapping[str, End] = {}
        while True:
            request = peer.receive(_LONGEST_SILENCE_S)
            if request["to"] is None:
                return
            try:
                if request["to"] == "start":
                    reply, ends = start(request["message"])
                else:
                    reply = ends[request["to"]].ask(request["message"], request["timeout_s"])
            except TensorwireError as error:
                peer.send({"error": str(error)})
                raise
            peer.send(reply)
