"""The list of Jobs that pods may ask the API server for, over TLS, by their token."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tensorwire.k8s.local_kubernetes.pods import NotForBox
from tensorwire.k8s.render import Manifest

PORT = 6443
NAMESPACE = "default"
_PATH = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


class JobsApi:
    """The Jobs, and the files of a service account that may list them."""

    def __init__(self, jobs: Sequence[Manifest], address: str, account: Path) -> None:
        """Serves clients that reach it at `address`; `account` is a folder for the files.

        Raises:
            NotForBox: there is no openssl, which makes the certificate.
        """
        self._jobs = {job["metadata"]["name"]: job for job in jobs}
        self._ended: set[str] = set()
        self._token = secrets.token_hex()
        account.mkdir(parents=True)
        (account / "token").write_text(self._token)
        self._context = _tls(address, account / "ca.crt")

    def end(self, job: str) -> None:
        """All pods of that Job have succeeded."""
        self._ended.add(job)

    @contextlib.contextmanager
    def serve(self, listener: socket.socket) -> Iterator[None]:
        """Answers there, in threads of its own."""
        address = listener.getsockname()
        server = ThreadingHTTPServer(address, _handler(self), bind_and_activate=False)
        server.socket.close()
        server.socket = self._context.wrap_socket(listener, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, path: str, authorization: str | None) -> tuple[int, object]:
        """Status and document."""
        url = urlsplit(path)
        if authorization != f"Bearer {self._token}":
            return 401, {"kind": "Status", "message": "Unauthorized"}
        if url.path != _PATH:
            return 404, {"kind": "Status", "message": "the lab serves Jobs only"}
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        found = []
        for name, job in self._jobs.items():
            if wanted.items() <= job["metadata"]["labels"].items():
                done = [{"type": "Complete", "status": "True"}] if name in self._ended else []
                found.append({**job, "status": {"conditions": done}})
        return 200, {"kind": "JobList", "apiVersion": "batch/v1", "items": found}


def _tls(address: str, certificate: Path) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        raise NotForBox("the lab's API server needs a certificate: install openssl")
    subject = ("-subj", "/CN=kubernetes", "-addext", f"subjectAltName=IP:{address}")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        files = ("-keyout", str(key), "-out", str(certificate))
        subprocess.run(
            ["openssl", "req", "-x509", "-days", "2", *new_key, *subject, *files],
            check=True,
            capture_output=True,
            timeout=60,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    return context


def _handler(api: JobsApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds, for who connects and says nothing

        def do_GET(self) -> None:
            status, document = api.answer(self.path, self.headers["Authorization"])
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    return Handler
