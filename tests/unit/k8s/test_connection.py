"""The connection to a cluster: errors in a kubeconfig are reported in one line."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from pathlib import Path

import pytest
import yaml

from k8s_cluster.command_line import one_line, run_in_process
from tensorwire.errors import TensorwireError
from tensorwire.k8s.connection import Connection


def write_kubeconfig(path: Path, url: str) -> None:
    named = {"name": "test"}
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [named | {"context": {"cluster": "test", "user": "test"}}],
                "clusters": [named | {"cluster": {"server": url}}],
                "users": [named | {"user": {"token": "secret"}}],
            }
        )
    )


def test_a_wrong_kubeconfig_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, path = run_in_process(capsys), tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "no cluster is configured" in one_line(run("status", "flights"), status=2)
    path.write_text("[")
    assert "your kubeconfig cannot be read" in one_line(run("status", "flights"), status=2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    write_kubeconfig(path, url)
    said = one_line(run("status", "flights", "--context", "other"), status=2)
    assert "no usable context other" in said
    assert f"no answer from the cluster at {url}" in one_line(run("status", "flights"))


class Busy(http.server.BaseHTTPRequestHandler):
    """Refuses the first two requests, like an API server with too many requests."""

    asked = 0

    def do_GET(self) -> None:
        Busy.asked += 1
        body = json.dumps({"kind": "Status", "message": "busy"}).encode()
        self.send_response(429 if Busy.asked <= 2 else 403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


def test_a_busy_api_server_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.k8s.connection._BUSY_S", (0.01,) * 4)
    with http.server.HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.server_address[1]}")
            with (
                Connection(kubeconfig=tmp_path / "config") as connection,
                pytest.raises(TensorwireError, match="lack a permission"),
            ):
                connection.resource("v1", "Pod")
        finally:
            server.shutdown()
            thread.join()
    assert Busy.asked >= 3
