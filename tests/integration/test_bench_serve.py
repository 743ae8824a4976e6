"""`tensorwire bench serve` with a real TensorFlow on both protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import run_in_process
from tensorwire.bench.experiments import serve

RESULT_FIELDS = [
    "protocol",
    "clients",
    "in_flight",
    "message_size",
    "payload",
    "requests",
    "requests_per_s",
    "mb_per_s",
    "latency_us",
    "ps_cpu_us_per_request",
    "ps_threads",
    "connect_s",
    "ps_bytes_per_client",
    "ps_descriptors_per_client",
    "fairness",
    "busy",
    "disconnect_s",
]


@pytest.mark.newest
def test_the_record_has_both_protocols_and_their_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "serve.json", tmp_path / "serve.html"
    arguments = ["--clients", "8", "--requests", "2000", "--rounds", "2", "--payload", "skewed"]
    run = run_in_process(capsys, "bench", "serve")
    done = run(*arguments, "--json", path, "--report", page)
    assert done.status == 0, done.err
    record: dict[str, Any] = json.loads(path.read_text())
    assert record["command"] == "bench serve"
    assert [result["protocol"] for result in record["results"]] == ["grpc", "grpc++"]
    for result in record["results"]:
        assert list(result) == RESULT_FIELDS
        assert (result["clients"], result["message_size"]) == (8, 4096)
        assert (result["payload"], result["requests"]) == ("skewed", 2000)
        assert 0 < result["latency_us"]["p50"] <= result["latency_us"]["p99"]
        # Eight clients with one request in flight each, and the median latency.
        assert result["requests_per_s"] < 8 * 1e6 / (0.3 * result["latency_us"]["p50"])
        assert result["ps_cpu_us_per_request"] > 0
        # gRPC also creates pollers on demand.
        descriptors = result["ps_descriptors_per_client"]
        assert descriptors >= 1
        if result["protocol"] == "grpc++":
            # On a loaded machine a client may still have a second attempt to connect open.
            assert descriptors <= 2
        assert 0 < result["fairness"] <= 1
        assert result["connect_s"] > 0
        assert 0 < result["disconnect_s"] < 30
    assert list(record["ratios"]) == ["grpc++/grpc"]
    assert "One ps, 8 clients" in done.out
    assert "Requests a second" in page.read_text()


@pytest.mark.newest
def test_clients_that_are_not_busy_only_stay_connected() -> None:
    plan = serve.Serve(clients=20, busy=2, requests=400, rounds=2, protocols=("grpc++",))
    record = plan.run()
    (result,) = record.results
    # Fairness is that of the busy clients; the others sent nothing in the rounds.
    assert (result.clients, result.busy, result.requests) == (20, 2, 400)
    assert result.fairness is not None and result.fairness > 0
    assert result.metric.of.startswith("One ps, 20 clients, 2 of them busy, with 1 request(s)")
    assert result.section(record).tables[0].title.startswith("One ps, 20 clients, 2 of them busy,")


@pytest.mark.newest
def test_every_client_is_answered_however_fast_the_others_are() -> None:
    plan = serve.Serve(clients=400, requests=400, rounds=1, protocols=("grpc++",))
    (result,) = plan.run().results
    assert result.fairness == 1.0


@pytest.mark.newest
def test_a_ps_has_no_thread_for_each_of_its_clients() -> None:
    threads = {}
    for clients in (2, 256):
        plan = serve.Serve(clients=clients, requests=2 * clients, rounds=1, protocols=("grpc++",))
        # The bench fails unless every client has its own connection.
        (result,) = plan.run().results
        threads[clients] = result.ps_threads
    # A ps has up to eight reactors, and gRPC some threads that come and go.
    assert threads[256] - threads[2] < 32
