"""The connection to a cluster: errors are one line, and a busy server is asked again."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from command_line import one_line, run_in_process
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
    run, path = run_in_process(capsys, "k8s"), tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "no cluster is configured" in one_line(run("status", "flights"), status=2)
    path.write_text("[")
    assert "your kubeconfig cannot be read" in one_line(run("status", "flights"), status=2)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody else listens there
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        write_kubeconfig(path, url)
        said = one_line(run("status", "flights", "--context", "other"), status=2)
        assert "no usable context other" in said
        assert f"no answer from the cluster at {url}" in one_line(run("status", "flights"))


@contextlib.contextmanager
def api_server(kubeconfig: Path, answers: Iterator[int]) -> Iterator[list[int]]:
    """A server of a kubeconfig that answers with these statuses; yields those given so far."""
    given: list[int] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.append(next(answers))
            body = json.dumps({"kind": "Status", "message": "busy"}).encode()
            self.send_response(given[-1])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            write_kubeconfig(kubeconfig, f"http://127.0.0.1:{server.server_address[1]}")
            yield given
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.k8s.connection._PAUSE_S", (0.01, 0.02))


@pytest.mark.usefixtures("short_pauses")
def test_a_busy_api_server_is_asked_again(tmp_path: Path) -> None:
    answers = itertools.chain([429] * 20, itertools.repeat(403))
    with (
        api_server(tmp_path / "config", answers) as given,
        Connection(kubeconfig=tmp_path / "config") as connection,
        pytest.raises(TensorwireError, match="lack a permission"),
    ):
        connection.resource("v1", "Pod")
    assert given[:21] == [429] * 20 + [403]


@pytest.mark.usefixtures("short_pauses")
def test_an_api_server_that_stays_busy_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorwire.k8s.connection._BUSY_FOR_S", 0.2)
    with (
        api_server(tmp_path / "config", itertools.repeat(429)) as given,
        Connection(kubeconfig=tmp_path / "config") as connection,
    ):
        with pytest.raises(TensorwireError, match="the cluster answered 429: busy"):
            connection.resource("v1", "Pod")
        assert len(given) > 2
        given.clear()  # the time is counted from the server's last other answer
        with pytest.raises(TensorwireError, match="the cluster answered 429: busy"):
            connection.resource("v1", "Pod")
        assert len(given) == 1
