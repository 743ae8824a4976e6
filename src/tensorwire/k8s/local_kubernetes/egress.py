"""The way of the local API server to pods and kubelets: an HTTP CONNECT proxy on a Unix socket.

Kubernetes calls this an egress selector. A pod in a lab is in a network of its own, which only a
thread that has entered it can reach.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorwire.owning_context import OwningContext

CONNECT_S = 5.0
_PIECE_BYTES = 1 << 16

Route = Callable[[int], socket.socket]
"""A connection to a port of one address. Raises OSError."""


class Egress(OwningContext):
    """A context manager; `path` is where the proxy listens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._routes: dict[str, Route] = {}

    def _open(self, held: contextlib.ExitStack) -> None:
        # By its folder's descriptor: the path of a Unix socket is short.
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, folder)
        server = _Server(f"/proc/self/fd/{folder}/{self.path.name}", _handler(self.connect))
        held.callback(server.server_close)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        held.callback(thread.join)
        held.callback(server.shutdown)

    @contextlib.contextmanager
    def route(self, address: str, route: Route) -> Iterator[None]:
        """While in it, connections to `address` are what `route` makes of their port."""
        self._routes[address] = route
        try:
            yield
        finally:
            del self._routes[address]

    def connect(self, address: tuple[str, int]) -> socket.socket:
        """A connection to where the API server wants to go. Raises OSError."""
        route = self._routes.get(address[0])
        return socket.create_connection(address, CONNECT_S) if route is None else route(address[1])


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


def _handler(
    connect: Callable[[tuple[str, int]], socket.socket],
) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            words = self.rfile.readline().split()
            while self.rfile.readline().strip():
                pass
            host, _, port = words[1].decode().rpartition(":")
            try:
                there = connect((host.strip("[]"), int(port)))
            except OSError:
                self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            with there:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                join(self.request, there)

    return Handler


def join(one: socket.socket, other: socket.socket) -> None:
    """Carries bytes in both directions until both have ended."""
    one.settimeout(None)
    other.settimeout(None)
    back = threading.Thread(target=_carry, args=(other, one), daemon=True)
    back.start()
    _carry(one, other)
    back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE_BYTES):
            sink.sendall(data)
    # Whoever reads the other end sees the end of the stream.
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
