"""Connections of the local API server to pods: an HTTP CONNECT proxy on a Unix socket.

Kubernetes calls this an egress selector. A pod of a lab is in its own network namespace, which only
a thread that has entered it can reach.
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
"""Connects to a port of one address. Raises OSError."""


class Egress(OwningContext):
    """A context manager that runs the proxy, which listens at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._routes: dict[str, Route] = {}

    def _open(self, held: contextlib.ExitStack) -> None:
        # Through the folder's descriptor, because the path of a Unix socket must be short.
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
        """Within the context, connections to `address` are made by `route`."""
        self._routes[address] = route
        try:
            yield
        finally:
            del self._routes[address]

    def connect(self, address: tuple[str, int]) -> socket.socket:
        """Connects to an address for the API server. Raises OSError."""
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
    """Forwards bytes in both directions until both have ended."""
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
    # The reader at the other end then sees the end of the stream.
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
