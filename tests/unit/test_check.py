"""`tensorwire check`: what it says of this machine and of the tasks of a cluster."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import click.testing
import pytest

from tensorwire.check import machine, tasks
from tensorwire.check.finding import Finding
from tensorwire.cli.check import check
from tensorwire.cluster import ClusterSpec
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.plugin import build, compiler


@contextlib.contextmanager
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> Iterator[str]:
    """The address of a port that is taken, and on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def only(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


class TestTasks:
    def test_both_ports_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tasks, "_ephemeral_ports", lambda: (1, 0))
        with listener() as grpc, listener() as data:
            (tmp_path / ".endpoint_map").write_text(f"{grpc}={data}\n")
            found = only(tasks.tasks(ClusterSpec({"ps": [grpc]}), 5.0, tmp_path / ".endpoint_map"))
        assert found.state == "ok"
        assert found.subject == "ps:0"
        assert f"{grpc} and its data port {data} answer" in found.text

    def test_a_task_that_is_not_up(self, tmp_path: Path, closed: str) -> None:
        found = only(tasks.tasks(ClusterSpec({"ps": [closed]}), 5.0, tmp_path / ".endpoint_map"))
        assert found.state == "error"
        assert found.text == f"no server at {closed}: Connection refused"
        assert "start the task" in found.advice

    def test_a_task_on_grpc(self, tmp_path: Path, closed: str) -> None:
        with listener() as grpc:
            (tmp_path / ".endpoint_map").write_text(f"{grpc}={closed}\n")
            found = only(
                tasks.tasks(ClusterSpec({"worker": [grpc]}), 5.0, tmp_path / ".endpoint_map")
            )
        assert found.state == "error"
        assert found.text == (
            f"its gRPC port {grpc} answers, but its data port {closed} (from "
            f"{tmp_path / '.endpoint_map'}) does not: Connection refused"
        )
        assert 'protocol="grpc++"' in found.advice

    def test_a_data_port_among_those_of_outgoing_connections(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with listener() as grpc, listener() as data:
            port = int(data.rpartition(":")[2])
            monkeypatch.setattr(tasks, "_ephemeral_ports", lambda: (port, port + 9))
            (tmp_path / ".endpoint_map").write_text(f"{grpc}={data}\n")
            found = only(tasks.tasks(ClusterSpec({"ps": [grpc]}), 5.0, tmp_path / ".endpoint_map"))
        assert found.state == "warning"
        assert f"ports {port} to {port + 9}" in found.text
        assert found.advice.endswith(f"take a gRPC port below {port - 20_000}")

    def test_findings_are_in_the_clusters_order(self, tmp_path: Path, closed: str) -> None:
        with listener() as grpc:
            cluster = ClusterSpec({"ps": [closed, grpc], "worker": ["nowhere.invalid:1"]})
            found = list(tasks.tasks(cluster, 5.0, tmp_path / ".endpoint_map"))
        assert [each.subject for each in found] == ["ps:0", "ps:1", "worker:0"]
        assert {each.state for each in found} == {"error"}


class TestMachine:
    def test_memory_between_tasks(self) -> None:
        assert only(machine._memory_lane()).state == "ok"

    def test_few_open_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (256, 1024))
        found = only(machine._open_files())
        assert found.state == "warning"
        assert "the hard limit is 1024" in found.advice

    @pytest.mark.parametrize(
        ("quota", "state"), [("max 100000", "ok"), ("50000 100000", "warning")]
    )
    def test_a_containers_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, state: str
    ) -> None:
        file = tmp_path / "cpu.max"
        file.write_text(quota)
        monkeypatch.setattr(machine, "_CPU_MAX", file)
        monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2})
        found = only(machine._cores())
        assert found.state == state
        if state == "warning":
            assert found.text.startswith("0.5 of 3, by the container's limit")

    def test_tls_without_a_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TENSORWIRE_TLS", "1")
        found = only(machine._security())
        assert found.state == "error"
        assert "token" in found.text

    def test_no_tensorflow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def none() -> None:
            raise TensorwireError("TensorFlow is not installed: pip install tensorflow")

        monkeypatch.setattr(build, "inventory", none)
        found = only(machine._plugin())
        assert (found.state, found.subject) == ("error", "TensorFlow")
        assert "pip install" in found.text

    @pytest.mark.parametrize("has_compiler", [True, False])
    def test_no_plugin_for_this_tensorflow(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_compiler: bool
    ) -> None:
        tensorflow = build.TensorFlowInstall("2.99", tmp_path, tmp_path, ())
        nothing = build.Inventory(tensorflow, build.prebuilt.Carried(), None, [], [])
        monkeypatch.setattr(build, "inventory", lambda: nothing)

        def find() -> compiler.Compiler:
            if not has_compiler:
                raise compiler.NoCompilerError("no C++ compiler: apt-get install g++")
            return compiler.Compiler(("g++",), "g++ 12")

        monkeypatch.setattr(compiler, "find_compiler", find)
        found = list(machine._plugin())[1]
        assert found.state == ("warning" if has_compiler else "error")
        assert ("tensorwire build" in found.advice) == has_compiler


def test_the_command_shows_findings_and_fails_if_one_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "machine", lambda: iter([Finding("ok", "cores", "8")]))
    arguments = ["--ps-hosts", closed, "--json", "found.json"]
    done = click.testing.CliRunner().invoke(check, arguments)
    assert isinstance(done.exception, TensorwireError)
    assert str(done.exception) == "1 of 2 checks failed: ps:0"
    assert "  ok  cores: 8\n" in done.output
    assert f"FAIL  ps:0: no server at {closed}" in done.output
    document = json.loads((tmp_path / "found.json").read_text())
    assert [each["state"] for each in document["findings"]] == ["ok", "error"]

    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": [closed]}}))
    monkeypatch.setenv("TENSORWIRE_ENDPOINT_MAP", "wrong.map")
    done = click.testing.CliRunner().invoke(check, [])
    assert "FAIL  worker:0" in done.output
    Path("wrong.map").write_text("no map\n")
    done = click.testing.CliRunner().invoke(check, [])
    assert isinstance(done.exception, UsageError)
    assert "wrong.map" in str(done.exception)
