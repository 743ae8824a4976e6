"""Serves a task's metrics over HTTP: ``/metrics`` for Prometheus, ``/figures`` as JSON.

Off unless `serve` or the environment names a port or a Unix socket. Listens on loopback unless
another address is named.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from tensorwire.errors import TensorwireError
from tensorwire.metrics import observed_job
from tensorwire.metrics.collect import Source
from tensorwire.settings import METRICS, address_text

LOOPBACK = "127.0.0.1"
MOST_CLIENTS = 16
_log = logging.getLogger(__name__)


class Endpoint:
    """The endpoint that `serve` started."""

    def __init__(self, server: HTTPServer, address: str) -> None:
        self.address = address
        """ "host:port" or "unix:PATH"."""
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, name="tensorwire-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(source: Source, where: str) -> Endpoint:
    """Serves the metrics of `source` in a thread.

    Args:
        where: as METRICS: HOST:PORT, a port of loopback (0: a free one), or unix:PATH; in a folder
            each process has a socket.

    Raises:
        TensorwireError: the port or the path cannot be used; the message says why.
    """
    if where.startswith("unix:"):
        path = Path(where.removeprefix("unix:")).expanduser().absolute()
        return _serve_socket(source, path / f"{os.getpid()}.sock" if path.is_dir() else path)
    host, _, port = where.rpartition(":")
    host = host.strip("[]") or LOOPBACK
    if not port.isdecimal() or int(port) > 65535:
        raise TensorwireError(
            f"{METRICS}={where}: give HOST:PORT, a port of loopback, or unix:PATH"
        )
    try:
        server = _Server((host, int(port)), _handler(source))
    except OSError as error:
        raise TensorwireError(
            f"cannot serve metrics at {host}:{port} ({error.strerror or error}); "
            f"name another port with {METRICS}, or 0 for any"
        ) from None
    return Endpoint(server, address_text(host, server.server_address[1]))


def _serve_socket(source: Source, path: Path) -> Endpoint:
    try:
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(path))
            raise OSError("another process serves there")
        path.unlink(missing_ok=True)  # left by a process that was killed
        server = _Server(str(path), _handler(source))
    except OSError as error:
        raise TensorwireError(
            f"cannot serve metrics at {path} ({error.strerror or error}); "
            f"let {METRICS} name another path, or a folder"
        ) from None
    path.chmod(0o600)
    pid = os.getpid()

    def remove() -> None:
        if os.getpid() == pid:
            path.unlink(missing_ok=True)

    atexit.register(remove)
    return Endpoint(server, f"unix:{path}")


def start_from_environment(
    stats: Callable[[], Mapping[str, Any]], await_task: Callable[[], None]
) -> None:
    """Opens and announces an endpoint once there is a task, if the environment asks for one.

    Args:
        stats: `tensorwire.tf.stats`.
        await_task: returns when this process is a task. A process that only starts tasks or loads
            data must not take their port.

    A failure is only logged, because it must not end the training.
    """
    if not (wanted := os.environ.get(METRICS)):
        return

    def start() -> None:
        await_task()
        from tensorwire.metrics.collect import source

        try:
            address = serve(source(stats), wanted).address
        except TensorwireError as error:
            _log.warning("tensorwire: %s", error)
            return
        _log.info("tensorwire: metrics are served at %s", address)
        try:
            observed_job.announce(address)
        except (OSError, TensorwireError) as error:
            _log.warning(
                "tensorwire: `tensorwire top` does not find this task (%s); use --endpoints %s",
                error,
                address,
            )

    threading.Thread(target=start, name="tensorwire-endpoint", daemon=True).start()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    """A thread for each client, and at most MOST_CLIENTS: a further one ends the oldest."""

    daemon_threads = True
    # If two processes shared a port, each scrape would reach only one of them.
    allow_reuse_port = False

    def __init__(
        self, address: tuple[str, int] | str, handler: type[BaseHTTPRequestHandler]
    ) -> None:
        """`address`: host and port, or the path of a Unix socket."""
        if isinstance(address, str):
            self.address_family = socket.AF_UNIX
        elif ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._clients: list[socket.socket] = []
        self._lock = threading.Lock()
        super().__init__(address, handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        # Not HTTPServer's method, which resolves this host's name and may block on that.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._clients.append(request)
            if len(self._clients) > MOST_CLIENTS:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    self._clients.pop(0).shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._clients.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # such as a client that has gone
            super().handle_error(request, client_address)


def _handler(source: Source) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds, for clients that connect and send nothing

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._metrics()
            elif path == "/figures":
                body = json.dumps(source().to_json()).encode()
                self._answer(200, "application/json", body)
            else:
                self._answer(404, "text/plain", b"there are /metrics and /figures\n")

        def _metrics(self) -> None:
            try:
                from tensorwire.metrics import prometheus
            except ImportError:
                self._answer(501, "text/plain", b"prometheus-client is missing: pip install it\n")
                return
            self._answer(200, prometheus.CONTENT_TYPE, prometheus.exposition(source))

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing, because scrapes come every few seconds."""

        def address_string(self) -> str:
            return str(self.client_address)  # for a Unix socket it is not a pair

    return Handler
