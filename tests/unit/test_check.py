"""`tensorwire check`: its findings about this machine and the tasks of a cluster."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import click.testing
import pytest

import tensorwire
from tensorwire import engine
from tensorwire.cli.doctor import check
from tensorwire.cluster import ClusterSpec
from tensorwire.doctor import check as checks
from tensorwire.doctor.evidence import Finding, checked
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.plugin import build, compiler


@contextlib.contextmanager
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> Iterator[str]:
    """The address of a port that is bound, but on which no process listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def only(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


def reached(
    version: str = tensorwire.__version__, clock_ahead_s: float = 0.0, bytes_per_s: float = 0.0
) -> engine.Reached:
    return engine.Reached(version, 2e-4, clock_ahead_s, bytes_per_s)


class TestTasks:
    @pytest.fixture(autouse=True)
    def set_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.map = tmp_path / ".endpoint_map"
        self.patch = monkeypatch
        with contextlib.ExitStack() as self.stack:
            yield

    def tasks(self, *answers: engine.Reached | str) -> ClusterSpec:
        """Workers whose gRPC ports answer, and whose data ports behave as `answers` says."""
        addresses = [self.stack.enter_context(listener()) for _ in answers]
        by_peer = {f"/job:worker/replica:0/task:{i}": said for i, said in enumerate(answers)}

        def reach(
            address: str, second_port: int | None, peer: str, timeout_s: float, rate_s: float = 0
        ) -> engine.Reached:
            said = by_peer[peer]
            if isinstance(said, str):
                raise UsageError(f"{peer} at {address}: {said}")
            return said

        self.patch.setattr(engine, "reach", reach)
        return ClusterSpec({"worker": addresses})

    def found(self, cluster: ClusterSpec) -> dict[str, Finding]:
        return {each.rule: each for each in checks.tasks(cluster, 5.0, self.map)}

    def test_a_task_that_answers(self) -> None:
        cluster = self.tasks(reached())
        (address,) = cluster.jobs["worker"]
        self.map.write_text(f"{address}=127.0.0.1:1\n")
        found = self.found(cluster)
        assert list(found) == ["worker:0", "versions", "clocks", "links"]
        assert {each.state for each in found.values()} == {"ok"}
        assert found["worker:0"].title == (
            f"{address} and its data port 127.0.0.1:1 answer, in 0.2 ms; it is "
            "/job:worker/replica:0/task:0 and accepts this host"
        )
        assert found["links"].title == "not measured: all tasks that answer are on this host"

    def test_a_task_that_is_not_up(self, closed: str) -> None:
        found = only(checks.tasks(ClusterSpec({"ps": [closed]}), 5.0, self.map))
        assert found.state == "error"
        assert found.title == f"no server at {closed}: Connection refused"
        assert "start the task" in found.change

    def test_an_evaluator_that_is_not_up(self, closed: str) -> None:
        found = only(checks.tasks(ClusterSpec({"evaluator": [closed]}), 5.0, self.map))
        assert found.state == "warning"
        assert "take it out of the cluster" in found.change

    def test_a_task_on_grpc(self, closed: str) -> None:
        with listener() as grpc:
            self.map.write_text(f"{grpc}={closed}\n")
            found = only(checks.tasks(ClusterSpec({"worker": [grpc]}), 5.0, self.map))
        assert found.state == "error"
        assert found.title == (
            f"its gRPC port {grpc} answers, but its data port {closed} (from {self.map}) does not: "
            "Connection refused"
        )
        assert 'protocol="grpc++"' in found.change

    def test_a_data_port_that_never_answers(self) -> None:
        with listener() as grpc, listener() as data:
            self.map.write_text(f"{grpc}={data}\n")
            found = only(checks.tasks(ClusterSpec({"worker": [grpc]}), 0.3, self.map))
        assert found.state == "error"
        assert f"its data port {data} (from {self.map}) does not: no answer" in found.title

    def test_a_task_that_refuses(self) -> None:
        refusal = "/job:worker/replica:0/task:0 refused: the client has no job token"
        found = self.found(self.tasks(refusal))["worker:0"]
        assert found.state == "error"
        assert "refuses this host: /job:worker/replica:0/task:0 at 127.0.0.1" in found.title
        assert found.title.endswith(refusal)
        assert "TENSORWIRE_TOKEN_FILE" in found.change

    @pytest.mark.parametrize(("version", "said"), [("0.1.9", "0.1.9"), ("", "an older one")])
    def test_another_version(self, version: str, said: str) -> None:
        found = self.found(self.tasks(reached(), reached(version)))["versions"]
        assert found.state == "warning"
        assert (
            found.title == f"this host has tensorwire {tensorwire.__version__}; worker:1 has {said}"
        )

    @pytest.mark.parametrize(
        ("ahead_s", "state", "words"), [(0.3, "ok", "ahead of"), (-40.0, "warning", "behind")]
    )
    def test_clocks(self, ahead_s: float, state: str, words: str) -> None:
        found = self.found(self.tasks(reached(clock_ahead_s=0.01), reached(clock_ahead_s=ahead_s)))
        assert found["clocks"].state == state
        said = f"the clock of worker:1 is {abs(ahead_s):g} s {words} this host's (+- 0.0001 s)"
        assert said in found["clocks"].title

    @pytest.mark.parametrize(("slowest", "state"), [(600e6, "ok"), (100e6, "warning")])
    def test_links(self, slowest: float, state: str) -> None:
        self.patch.setattr(checks, "_connect", lambda address, timeout_s: (False, ""))
        answers = [reached(bytes_per_s=rate) for rate in (1.1e9, 1e9, slowest)]
        found = self.found(self.tasks(*answers))["links"]
        assert found.state == state
        assert "the median rate from here is 1 GB/s, " in found.title
        assert f"the lowest is {slowest / 1e6:g} MB/s, to worker:2" in found.title

    def test_findings_are_in_the_clusters_order(self, closed: str) -> None:
        with listener() as grpc:
            cluster = ClusterSpec({"ps": [closed, grpc], "worker": ["nowhere.invalid:1"]})
            found = list(checks.tasks(cluster, 5.0, self.map))
        assert [each.rule for each in found] == ["ps:0", "ps:1", "worker:0"]
        assert {each.state for each in found} == {"error"}


class TestMachine:
    def test_memory_between_tasks(self) -> None:
        assert only(checks._memory_lane()).state == "ok"

    def test_few_open_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (256, 1024))
        found = only(checks._open_files())
        assert found.state == "warning"
        assert "limit 1024" in found.title

    @pytest.mark.parametrize(("usable", "state"), [(3.0, "ok"), (0.5, "warning")])
    def test_a_containers_limit(
        self, monkeypatch: pytest.MonkeyPatch, usable: float, state: str
    ) -> None:
        monkeypatch.setattr(checks, "usable_cores", lambda: usable)
        monkeypatch.setattr(checks.os, "sched_getaffinity", lambda _: {0, 1, 2})
        found = only(checks._cores())
        assert found.state == state
        if state == "warning":
            assert found.title.startswith("0.5 of 3, by the container's limit")

    def test_tls_without_a_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TENSORWIRE_TLS", "1")
        found = only(checks._security())
        assert found.state == "error"
        assert "token" in found.title

    def test_no_tensorflow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def none() -> None:
            raise TensorwireError("TensorFlow is not installed: pip install tensorflow")

        monkeypatch.setattr(build, "inventory", none)
        found = only(checks._plugin())
        assert (found.state, found.rule) == ("error", "TensorFlow")
        assert "pip install" in found.title

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
        found = list(checks._plugin())[1]
        assert found.state == ("warning" if has_compiler else "error")
        assert ("tensorwire build" in found.change) == has_compiler


def test_the_command_shows_findings_and_fails_if_one_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "machine", lambda: iter([checked("ok", "cores", "8")]))
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
