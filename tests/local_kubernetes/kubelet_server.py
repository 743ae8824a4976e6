"""The kubelet's server for the API server's requests: logs of containers, over TLS."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlsplit

from tensorwire.owning_context import OwningContext

LogOf = Callable[[str, str, str], "tuple[Path, Callable[[], bool]] | None"]
"""Maps namespace, pod and container to the log and a function that tells if it grows, or None."""

_POLL_S = 0.1
_PIECE_BYTES = 1 << 16


class KubeletServer(OwningContext):
    """A context manager. Answers only clients with the control plane's certificate."""

    def __init__(self, certificate: Path, key: Path, log_of: LogOf) -> None:
        self._certificate, self._key, self._log_of = certificate, key, log_of
        self.port = 0

    def _open(self, held: contextlib.ExitStack) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self._certificate))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._certificate, self._key)
        server = _Server(("127.0.0.1", 0), _handler(self._log_of))
        held.callback(server.server_close)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = int(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        held.callback(thread.join)
        held.callback(server.shutdown)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


def _handler(log_of: LogOf) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds, for clients that connect and send nothing

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            words = url.path.strip("/").split("/")
            found = None
            if len(words) == 4 and words[0] == "containerLogs":
                found = log_of(words[1], words[2], words[3])
            if found is None:
                self.send_error(404)
                return
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            log, grows = found
            with log.open("rb") as file:
                if "tailLines" in query:
                    _skip_to_tail(file, int(query["tailLines"]))
                while True:
                    going_on = query.get("follow") == "true" and grows()
                    while piece := file.read(_PIECE_BYTES):
                        self.wfile.write(piece)
                    if not going_on:
                        return
                    time.sleep(_POLL_S)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing."""

    return Handler


def _skip_to_tail(log: IO[bytes], lines: int) -> None:
    ends = [0]
    for line in log:
        ends.append(ends[-1] + len(line))
    log.seek(ends[max(0, len(ends) - 1 - lines)])
