"""The connection between the two ends of a measurement on different hosts, and its handshake.

One end listens at its task's address and the other connects to it. Both have a timeout, whose error
names the missing peer. They exchange a `Hello`; if these do not fit, both fail with the same error.
After that the connection carries JSON messages, and its loss shows that the other end has ended.
The listening socket is closed by then, so measured processes can listen at that address.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import tensorwire
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError

Message = dict[str, Any]

_HELLO_TIMEOUT_S = 5.0
_LONGEST_HELLO_BYTES = 4096
_LONGEST_MESSAGE_BYTES = 64 << 20
_POLL_S = 0.25
# TCP keepalive, which detects a host that lost its power.
_IDLE_S, _PROBE_EVERY_S, _PROBES = 10, 5, 4


class PeerGone(TensorwireError):
    """The other host closed the connection, or cannot be reached any more."""


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
        """Raises TensorwireError if the two cannot measure together. Both ends raise the same
        error.
        """
        first, second = sorted((self, other), key=lambda hello: hello.part)
        for field, what, advice in (
            ("command", "commands", "start the same one on both"),
            ("version", "versions of tensorwire", "install the same one on both"),
            ("tensorflow", "versions of TensorFlow", "install the same one on both"),
        ):
            a, b = getattr(first, field), getattr(second, field)
            if a != b:
                raise TensorwireError(
                    f"the hosts have different {what}: {a or 'none'} at {first.part} "
                    f"({first.host}), {b or 'none'} at {second.part} ({second.host}); {advice}"
                )


def installed_tensorflow() -> str | None:
    """The version of the installed TensorFlow, without importing it; None if there is none."""
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow_cpu", "tf-nightly"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


class Peer:
    """The connection to the other host. A context manager that closes it.

    `hello` is the other end's identity.
    """

    def __init__(self, stream: socket.socket, address: str) -> None:
        self._stream = stream
        self._buffer = b""
        self.address = address
        self.hello = Hello("", "peer")
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()

    def fileno(self) -> int:
        """Descriptor for select; readable if `receive` can read data or the end of the stream."""
        return self._stream.fileno()

    @property
    def name(self) -> str:
        return f"{self.hello.part} at {self.address}"

    def send(self, message: Message) -> None:
        """Sends a message. Raises PeerGone."""
        try:
            self._stream.settimeout(_HELLO_TIMEOUT_S)
            self._stream.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._gone() from error

    def receive(self, timeout_s: float) -> Message:
        """The next message.

        Raises:
            PeerGone: the connection has ended.
            TensorwireError: no message arrived within `timeout_s`, or it is not a JSON object.
        """
        line = self._line(timeout_s, _LONGEST_MESSAGE_BYTES)
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise TensorwireError(f"{self.name} sent an invalid message: {line[:80]!r}")
        return message

    def wait(self, timeout_s: float) -> bool:
        """Waits until `receive` can read data or the end of the stream; False after `timeout_s`."""
        return b"\n" in self._buffer or bool(select.select([self], [], [], timeout_s)[0])

    def _line(self, timeout_s: float, longest_bytes: int) -> bytes:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not select.select([self], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TensorwireError(f"{self.name} did not answer within {timeout_s:g} s")
            try:
                data = self._stream.recv(1 << 16)
            except OSError as error:
                raise self._gone() from error
            if not data or len(self._buffer) > longest_bytes:
                raise self._gone()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _gone(self) -> PeerGone:
        return PeerGone(f"{self.name} ended before it was done")

    def end(self) -> None:
        """Ends the sending direction; `receive` still works."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)

    def set_blocking(self) -> None:
        """Call this before another process uses the connection as a file. `send` undoes it."""
        self._stream.settimeout(None)

    def is_open(self) -> bool:
        """True if the other host has not closed the connection; reads no data."""
        try:
            return self._stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def greet(self, me: Hello) -> None:
        """Exchanges the identities of both ends.

        Raises:
            PeerGone: the other end is not a process of tensorwire.
            TensorwireError: the two ends do not fit.
        """
        self.send({"tensorwire": dataclasses.asdict(me)})
        try:
            hello = Hello(
                **json.loads(self._line(_HELLO_TIMEOUT_S, _LONGEST_HELLO_BYTES))["tensorwire"]
            )
        except (ValueError, KeyError, TypeError, TensorwireError) as error:
            raise PeerGone(
                f"the process at {self.address} is not `tensorwire {me.command}`"
            ) from error
        self.hello = hello
        me.check(hello)


def accept_peer(
    server: socket.socket,
    me: Hello,
    expected: str,
    deadline: float,
) -> Peer:
    """Waits at a listening socket until the other end has greeted.

    Args:
        expected: the expected peer, for the error message: "worker at host2:12222".
        deadline: a time of time.monotonic().

    Raises:
        TensorwireError: no peer connected in time, or the peer does not match.
    """
    began = time.monotonic()
    while True:
        if time.monotonic() > deadline:
            raise TensorwireError(
                f"the {expected} did not connect to port {server.getsockname()[1]} within "
                f"{deadline - began:.3g} s: start it there with the same flags, and check that "
                "this port can be reached from there"
            )
        if not select.select([server], [], [], _POLL_S)[0]:
            continue
        stream, (host, port, *_) = server.accept()
        with contextlib.ExitStack() as stack:
            peer = stack.enter_context(Peer(stream, f"{host}:{port}"))
            # Ignore strangers, such as port scans and health checks, and keep waiting.
            with contextlib.suppress(PeerGone):
                peer.greet(me)
                stack.pop_all()
                return peer


def call_peer(
    address: str,
    me: Hello,
    expected: str,
    timeout_s: float,
) -> Peer:
    """Connects to `address` until the other end answers; arguments and errors as `accept_peer`."""
    host, port = split_address(address)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            stream = socket.create_connection((host, port), timeout=_HELLO_TIMEOUT_S)
            with contextlib.ExitStack() as stack:
                peer = stack.enter_context(Peer(stream, address))
                peer.greet(me)
                stack.pop_all()
                return peer
        except (OSError, PeerGone) as error:
            if time.monotonic() > deadline:
                reason = str(error) if isinstance(error, PeerGone) else error.strerror or str(error)
                raise TensorwireError(
                    f"no {expected} after {timeout_s:g} s ({reason}): start it there with the same "
                    "flags, and check that the port is open"
                ) from error
        time.sleep(_POLL_S)


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Listens on the port of `address`, on every address of this host, as TensorFlow does."""
    _, port = split_address(address)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise TensorwireError(
            f"port {port} is in use on this host: end what listens there, or take another port"
        ) from error
    with server:
        yield server
