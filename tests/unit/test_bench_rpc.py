"""`bench rpc`: both ends of each implementation work, on one host and on two hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorwire.bench.experiments import raw
from tensorwire.bench.experiments.rpc import Rpc, RpcResult, RpcVariant
from tensorwire.bench.experiments.serve import connections_from, connections_to
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.record import Record
from tensorwire.bench.frame.several_hosts import Hello, call_peer
from tensorwire.bench.frame.tasks import Unwatched
from tensorwire.bench.lab.ports import PortLease
from tensorwire.cluster import split_address
from tensorwire.engine import data_port
from tensorwire.errors import TensorwireError
from tensorwire.plugin import compiler


@pytest.fixture
def port() -> Iterator[int]:
    lease = PortLease()
    yield lease.take()
    lease.release()


@pytest.fixture(scope="module")
def grpc_cpp() -> None:
    if compiler.package_flags("grpc++") is None:
        pytest.skip("gRPC in C++ is not installed: apt-get install libgrpc++-dev pkg-config")


def check(result: RpcResult, requests: int) -> None:
    assert result.requests == requests
    assert result.requests_per_s > 0
    moved_mb_per_s = result.requests_per_s * result.message_size / 1e6
    assert result.mb_per_s == pytest.approx(moved_mb_per_s, rel=1e-4)  # records are rounded
    assert 0 < result.latency_us.p50 <= result.latency_us.p99
    assert result.cpu_us_per_request is not None
    assert result.cpu_us_per_request > 0


@pytest.mark.parametrize(
    ("message_size", "response_size", "channels"), [(64, 10, 1), (0, 0, 2), (3_000_000, 70_000, 2)]
)
def test_grpcpp_is_the_engine_and_answers_every_request(
    message_size: int, response_size: int, channels: int
) -> None:
    plan = Rpc(
        message_size=message_size,
        response_size=response_size,
        concurrency=4,
        channels=channels,
        server_threads=2,
        total_message=103,
        rounds=4,
        protocols=("grpc++",),
    )
    record = plan.run()
    (result,) = record.results
    assert result.implementation == "engine"
    assert (result.concurrency, result.channels, result.server_threads) == (4, channels, 2)
    check(result, 103)
    assert record.ratios == {}
    assert record.tensorflow is None
    (read,) = Record.from_json(record.to_json()).results
    assert isinstance(read, RpcResult)
    assert read.latency_us.p99 == pytest.approx(result.latency_us.p99, rel=1e-5)


def test_both_protocols_take_turns_and_are_compared(grpc_cpp: None) -> None:
    plan = Rpc(message_size=100_000, concurrency=4, total_message=60, rounds=3)
    record = plan.run()
    grpc, ours = record.results
    assert grpc.implementation.startswith("grpc C++ 1.")
    assert (grpc.protocol, ours.protocol) == ("grpc", "grpc++")
    for result in (grpc, ours):
        check(result, 60)
    assert list(record.ratios) == ["grpc++/grpc"]
    section = showing.section(record)
    assert [row[1] for row in section.tables[0].rows] == [grpc.implementation, "engine"]


def test_much_data_gets_few_requests_in_flight_each_on_a_connection() -> None:
    small, large = Rpc(message_size=64), Rpc(message_size=100_000_000)
    assert (small.in_flight, small.connections, small.threads) == (64, 1, 1)
    assert (large.in_flight, large.connections, large.threads) == (4, 4, 4)
    asked = Rpc(message_size=100_000_000, concurrency=8, channels=1, server_threads=2)
    assert (asked.in_flight, asked.connections, asked.threads) == (8, 1, 2)
    assert Rpc(message_size=100_000_000, concurrency=2).connections == 2


@pytest.mark.parametrize("protocol", ["grpc", "grpc++"])
def test_a_channel_is_a_connection(grpc_cpp: None, protocol: str) -> None:
    plan = Rpc(channels=3, server_threads=2, protocols=(protocol,))
    with RpcVariant(protocol, plan) as side:
        side.wait_started(Unwatched())
        side.block(None, 300)
        port = split_address(side.address("server"))[1]
        port = port if protocol == "grpc" else data_port(port)
        assert connections_to(port, os.getpid()) == connections_from(port, os.getpid()) == 3
    assert not connections_from(port, os.getpid())


def test_grpcio_stands_in_where_grpc_is_not_installed_in_cpp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("grpc")
    monkeypatch.setenv("PATH", "")  # no pkg-config
    plan = Rpc(
        message_size=5_000_000, concurrency=3, channels=2, total_message=12, protocols=("grpc",)
    )
    (result,) = plan.run().results
    assert result.implementation.startswith("grpcio 1.")
    check(result, 12)


def test_without_any_grpc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(TensorwireError, match=r"apt-get install .*libgrpc\+\+-dev.*grpcio"):
        raw.rpc_end("grpc")


def test_a_request_that_cannot_be_answered_is_an_error() -> None:
    with pytest.raises(TensorwireError, match=r"raw server at 127\.0\.0\.1:1: "):
        raw.rpc_end("grpc++").connect("127.0.0.1:1", 1, 1, 0.2)


def bench(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tensorwire.cli.main", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_two_hosts_each_do_their_part_and_both_end(port: int, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    serving = ["--job", "server", "--server-threads", "2", "--message-size", "77"]
    server = bench("rpc", *serving, "--port", str(port))
    asking = ["--job", "client", "--target", f"localhost:{port}", "--total-message", "40"]
    asking += ["--message-size", "2000000", "--concurrency", "4", "--channels", "1"]
    client = bench("rpc", *asking, "--protocols", "grpc++", "--rounds", "2", "--json", str(record))
    for process in (client, server):
        status, _, err = outcome(process)
        assert status == 0, err
    (result,) = Record.from_json(record.read_text()).results
    assert isinstance(result, RpcResult)
    assert (result.response_size, result.server_threads) == (77, 2)
    check(result, 40)


def test_another_version_fails_at_both_ends(port: int) -> None:
    server = bench("rpc", "--job", "server", "--port", str(port))
    with pytest.raises(TensorwireError, match="different versions of tensorwire") as caught:
        call_peer(
            f"localhost:{port}", Hello(Rpc.command, "client:0", version="0.0.1"), "server", 100.0
        )
    status, _, err = outcome(server)
    assert status == 1
    assert str(caught.value) in err


def test_a_client_that_goes_ends_its_server_with_an_error(port: int) -> None:
    server = bench("rpc", "--job", "server", "--port", str(port))
    call_peer(f"localhost:{port}", Hello(Rpc.command, "client:0"), "server", 100.0).close()
    status, _, err = outcome(server)
    assert status == 1
    assert "ended before it was done" in err.splitlines()[-1]


@pytest.mark.parametrize("part", [["--job", "server"], ["--job", "client"]])
def test_who_waits_in_vain_says_for_whom(port: int, part: list[str]) -> None:
    where = ["--port", str(port)] if "server" in part else ["--target", f"localhost:{port}"]
    protocols = ["--protocols", "grpc++", "--timeout", "0.3"]
    status, _, err = outcome(bench("rpc", *part, *where, *protocols))
    assert status == 1
    assert ("the client did not connect" if "server" in part else "no server at") in err
    assert "Traceback" not in err
