"""Ports of this machine: for the tasks of a cluster, and who listens."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensorwire.engine import data_port
from tensorwire.errors import TensorwireError

# With data_port's rule, both ports are below Linux's default range of ephemeral ports (from 32768),
# where an outgoing connection could take a port between the check and its use.
_CANDIDATES: Sequence[int] = range(5000, 12768)
# States in /proc/net/tcp.
ESTABLISHED, CLOSE_WAIT, _LISTENING = "01", "08", "0A"


def _is_free(port: int) -> bool:
    """True if a server could listen on `port` on every address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def listening_ports(pid: int) -> set[int]:
    """The TCP ports on which any process listens in the network namespace of process `pid`."""
    return {local for local, _, state in tcp_sockets(pid) if state == _LISTENING}


def tcp_sockets(pid: int) -> Iterator[tuple[int, int, str]]:
    """Local port, remote port and state of each TCP socket in the network of process `pid`."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # no IPv6, or the process has ended
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, remote, state = line.split()[:4]
                yield int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16), state


def listen(address: str) -> socket.socket:
    """Listens at `address`, or on every address of this host if it names none (":12222").

    An address that this host does not have itself (NAT) also stands for all of them.

    Raises:
        TensorwireError: another process listens there, or the host of the address is unknown.
    """
    host, _, port_text = address.rpartition(":")
    port = int(port_text)
    try:
        return _server(host.strip("[]"), port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise TensorwireError(
                f"port {port} is in use on this host: end what listens there, or take another port"
            ) from error
        raise TensorwireError(f"cannot listen at {address}: {error}") from error


def _server(host: str, port: int) -> socket.socket:
    if host:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family)
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno != errno.EADDRNOTAVAIL:
                raise
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual)


@dataclass
class PortLease:
    """Ports that no other lease, in this or another process of this machine, hands out.

    A claim is a Unix socket with an abstract name. The kernel removes it with the process, it
    leaves no file, and like the port it belongs to the network namespace.
    """

    candidates: Sequence[int] = field(default_factory=lambda: _CANDIDATES)
    _claims: list[socket.socket] = field(default_factory=list)

    def take(self, in_a_row: int = 1) -> int:
        """The first of `in_a_row` consecutive ports p such that p and data_port(p) are free.

        Raises:
            TensorwireError: no such ports are left.
        """
        for first in random.SystemRandom().sample(self.candidates, len(self.candidates)):
            held = len(self._claims)
            if all(self._take(port) for port in range(first, first + in_a_row)):
                return first
            while len(self._claims) > held:
                self._claims.pop().close()
        raise TensorwireError(
            f"no free pair of ports between {self.candidates[0]} and {self.candidates[-1]}; "
            "end other clusters on this machine"
        )

    def _take(self, port: int) -> bool:
        return self._claim(port) and _is_free(port) and _is_free(data_port(port))

    def _claim(self, port: int) -> bool:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0tensorwire-port-{port}")
        except OSError:
            claim.close()
            return False
        self._claims.append(claim)
        return True

    def release(self) -> None:
        while self._claims:
            self._claims.pop().close()
