"""A task's metrics: the record, the endpoint, Prometheus, and how tasks are found."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.metrics import endpoint, observed_job, prometheus
from tensorwire.metrics.collect import source
from tensorwire.metrics.task_metrics import (
    PeerTraffic,
    PoolMetrics,
    ProcessMetrics,
    QueueWorker,
    ReactorMetrics,
    ServedTask,
    TableMetrics,
    TaskMetrics,
    TensorMetrics,
    WorkQueueMetrics,
    short_name,
)
from tensorwire.settings import METRICS

PS = "/job:ps/replica:0/task:0"
WORKER = "/job:worker/replica:0/task:3"
ROOT = Path(__file__).parents[2]


def traffic(task: str = PS, peer: str = WORKER, **changes: int) -> PeerTraffic:
    names = [field.name for field in dataclasses.fields(PeerTraffic)][2:]
    return PeerTraffic(task, peer, **{**{name: i + 1 for i, name in enumerate(names)}, **changes})


FIGURES = TaskMetrics(
    process=ProcessMetrics("here", 42, 2, 1.5e9, 12.5, 10**9),
    clock_us=1_000_000,
    recv_tensors=1,
    pushed_tensors=2,
    served_tensors=3,
    run_graphs=4,
    eager_calls=5,
    fused_messages=6,
    fused_tensors=7,
    recv_waiting_us=2_500_000,
    pool=PoolMetrics(1, 2, 3, 4),
    tasks=(ServedTask(PS, 0),),
    peers=(traffic(),),
    reactors=(ReactorMetrics(PS, 0, 500_000),),
    tensors=(
        TensorMetrics(PS, WORKER, "out", "embedding/read", 10, 4_000, 0, 0),
        TensorMetrics(PS, WORKER, "in", "gradients/x", 10, 40, 7, 8),
        TensorMetrics(PS, WORKER, "out", "", 1, 10**9, 0, 0),
    ),
    looked_up_ids=900,
    unique_ids=90,
    work_queues=(WorkQueueMetrics("files", 100, 5, 2, 1, (QueueWorker(WORKER, 6, 1, 4),)),),
    tables=(TableMetrics(PS, "users", 9, 72),),
)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Separates tests from other running tasks of this user."""
    monkeypatch.setenv(observed_job.FOLDER_VARIABLE, str(tmp_path / "runtime"))
    monkeypatch.delenv(METRICS, raising=False)


@pytest.fixture
def served() -> Iterator[Callable[..., str]]:
    """Serves FIGURES; returns the address."""
    endpoints: list[endpoint.Endpoint] = []

    def serve(where: str = "0") -> str:
        endpoints.append(endpoint.serve(lambda: FIGURES, where))
        return endpoints[-1].address

    yield serve
    for each in endpoints:
        each.close()


def get(address: str, path: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.headers["Content-Type"], reply.read()
    finally:
        connection.close()


# --- the record ----------------------------------------------------------------------------------


def test_the_record_survives_json() -> None:
    assert TaskMetrics.from_json(json.loads(json.dumps(FIGURES.to_json()))) == FIGURES


def test_what_a_newer_version_adds_is_ignored_and_what_is_missing_is_named() -> None:
    record = FIGURES.to_json()
    record["news"] = 1
    record["peers"][0]["news"] = 1
    assert TaskMetrics.from_json(record) == FIGURES
    del record["recv_tensors"]
    with pytest.raises(ValueError, match="recv_tensors"):
        TaskMetrics.from_json(record)
    with pytest.raises(ValueError, match="tx_bytes"):
        TaskMetrics.from_json({**FIGURES.to_json(), "peers": [{"task": PS, "peer": WORKER}]})


def test_tasks_have_short_names() -> None:
    assert short_name(WORKER) == "worker:3"
    assert short_name("127.0.0.1:5000") == "127.0.0.1:5000"
    assert FIGURES.name == "ps:0"
    assert dataclasses.replace(FIGURES, tasks=()).name == "pid 42"


def test_the_process_is_part_of_the_metrics() -> None:
    stats = {key: value for key, value in FIGURES.to_json().items() if key != "process"}
    process = source(lambda: stats)().process
    assert process.pid == os.getpid()
    assert process.rss_bytes > 1_000_000
    assert process.cpu_s > 0
    assert 1 <= process.cores <= (os.cpu_count() or 1)


# --- Prometheus ----------------------------------------------------------------------------------


def samples() -> dict[str, list[Any]]:
    text = prometheus.exposition(lambda: FIGURES).decode()
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_metrics_are_named_by_the_conventions_of_prometheus() -> None:
    text = prometheus.exposition(lambda: FIGURES).decode()
    ours = [f for f in text_string_to_metric_families(text) if f.name.startswith("tensorwire_")]
    assert len(ours) > 15
    for family in ours:
        assert re.fullmatch(r"[a-z][a-z_]*", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"(_us|_ms|_mb|_kb)(_|$)", family.name), "seconds and bytes only"
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)


def test_prometheus_has_the_metrics() -> None:
    found = samples()
    by_labels = {
        (s.labels["direction"], s.labels["way"]): s.value
        for s in found["tensorwire_peer_bytes_total"]
    }
    peer = FIGURES.peers[0]
    assert by_labels == {
        ("out", "tcp"): peer.tx_bytes,
        ("in", "tcp"): peer.rx_bytes,
        ("out", "memory"): peer.lent_bytes,
        ("in", "memory"): peer.read_bytes,
    }
    waits = {s.labels["reason"]: s.value for s in found["tensorwire_recv_wait_seconds_total"]}
    assert waits == {"not_ready": peer.not_ready_us / 1e6, "wire": peer.wire_us / 1e6}
    (busy,) = found["tensorwire_reactor_busy_seconds_total"]
    assert (busy.labels, busy.value) == ({"task": "ps:0", "reactor": "0"}, 0.5)
    assert found["tensorwire_recv_waiting_seconds_total"][0].value == 2.5
    assert found["tensorwire_looked_up_ids_total"][0].value == 900
    assert found["tensorwire_unique_ids_total"][0].value == 90
    items = {s.labels["state"]: s.value for s in found["tensorwire_work_queue_items"]}
    assert items == {"done": 5, "in_work": 2, "returned": 1}
    (rows,) = found["tensorwire_table_rows"]
    assert (rows.labels, rows.value) == ({"task": "ps:0", "table": "users"}, 9)
    (done,) = found["tensorwire_work_queue_done_items_total"]
    assert (done.labels, done.value) == ({"queue": "files", "worker": "worker:3"}, 4)
    assert found["process_resident_memory_bytes"][0].value > 0


def test_only_the_tensors_that_moved_most_have_a_metric() -> None:
    many = tuple(TensorMetrics(PS, WORKER, "out", f"t{i}", 1, i, 0, 0) for i in range(500))
    families = {f.name: f for f in prometheus.metrics(dataclasses.replace(FIGURES, tensors=many))}
    named = [s.labels["tensor"] for s in families["tensorwire_tensor_bytes"].samples]
    assert named == [f"t{i}" for i in range(499, 479, -1)]


@pytest.mark.docs
def test_every_metric_of_the_grafana_dashboard_exists() -> None:
    dashboard = (ROOT / "docs" / "grafana-dashboard.json").read_text()
    queries = [
        target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"]
    ]
    used = {name for q in queries for name in re.findall(r"(?:tensorwire|process)_[a-z_]+", q)}
    assert len(used) >= 8
    assert used <= set(samples())


@pytest.mark.docs
def test_the_panels_of_the_grafana_dashboard_are_on_its_page() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
    page = (ROOT / "docs" / "metrics.md").read_text()
    table = page.split("| panel | shows |\n| --- | --- |\n")[1].split("\n\n")[0]
    rows = [row.split("|")[1].strip() for row in table.splitlines()]
    assert ", ".join(rows) == ", ".join(panel["title"] for panel in dashboard["panels"])


# --- the endpoint --------------------------------------------------------------------------------


def test_an_endpoint_serves_json_and_metrics(served: Callable[..., str]) -> None:
    address = served()
    assert address.startswith("127.0.0.1:")
    assert observed_job.fetch(address) == observed_job.Fetched(address, FIGURES)
    status, content_type, body = get(address, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"tensorwire_peer_bytes_total{" in body
    assert get(address, "/else")[0] == 404


def test_an_endpoint_is_on_loopback_unless_told(served: Callable[..., str]) -> None:
    address = served()
    port = int(address.rpartition(":")[2])
    with socket.socket() as other:  # the port is free on another address of this host
        other.bind(("127.0.0.2", port))
    assert served("127.0.0.3:0").startswith("127.0.0.3:")


def test_clients_that_send_nothing_cost_few_threads_and_keep_no_one_out(
    served: Callable[..., str],
) -> None:
    address = served()
    host, _, port = address.rpartition(":")
    before = threading.active_count()
    with contextlib.ExitStack() as clients:
        silent = [
            clients.enter_context(socket.create_connection((host, int(port))))
            for _ in range(3 * endpoint.MOST_CLIENTS)
        ]
        assert get(address, "/figures")[0] == 200
        silent[0].settimeout(30)
        assert silent[0].recv(1) == b""  # made room
        deadline = time.monotonic() + 30
        while threading.active_count() - before > endpoint.MOST_CLIENTS:
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.01)


def test_an_endpoint_at_a_socket_is_for_its_owner_alone(
    served: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "figures.sock"
    address = served(f"unix:{path}")
    assert address == f"unix:{path}"
    assert observed_job.fetch(address).metrics == FIGURES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(TensorwireError, match="another process serves there"):
        served(f"unix:{path}")


def test_a_socket_that_a_killed_process_left_is_taken_over(
    served: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "figures.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert observed_job.fetch(served(f"unix:{path}")).metrics == FIGURES


def start_and_wait(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stats = {key: value for key, value in FIGURES.to_json().items() if key != "process"}
    before = set(threading.enumerate())
    endpoint.start_from_environment(lambda: stats, lambda: None)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "tensorwire-endpoint":
            thread.join(30)


def test_a_port_that_is_taken_is_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with caplog.at_level(logging.WARNING):
            start_and_wait(monkeypatch, TENSORWIRE_METRICS=port)
    (record,) = caplog.records
    assert f"127.0.0.1:{port} (Address already in use)" in record.getMessage()
    assert METRICS in record.getMessage()
    assert observed_job.discover() == []


@pytest.mark.parametrize("port", ["x", "65536", "-1", "127.0.0.1", "127.0.0.1:"])
def test_what_is_no_port_is_a_line_in_the_log(
    port: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start_and_wait(monkeypatch, TENSORWIRE_METRICS=port)
    assert f"{METRICS}={port}: give HOST:PORT, a port of loopback, or unix:PATH" in caplog.text


def test_without_a_port_or_a_socket_nothing_is_served() -> None:
    before = threading.active_count()
    endpoint.start_from_environment(dict, lambda: None)
    assert threading.active_count() == before


def test_run_passes_the_endpoint_on_to_the_tasks(tensorwire: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ.get('TENSORWIRE_METRICS'))")
    for host, told in {"0.0.0.0": "0.0.0.0:0", "::1": "[::1]:0"}.items():
        done = tensorwire("run", "--metrics-port", "0", "--metrics-host", host, script)
        assert done.stdout.strip() == told, done.stderr
    env = {METRICS: "unix:/folder"}  # the command line wins
    assert tensorwire("run", script, env=env).stdout.strip() == "unix:/folder"
    done = tensorwire("run", "--metrics-port", "9100", script, env=env)
    assert done.stdout.strip() == "127.0.0.1:9100"
    assert tensorwire("run", "--metrics-port", "70000", script).returncode == 2


# --- finding tasks -------------------------------------------------------------------------------


def test_a_task_with_an_endpoint_is_found_until_it_ends(python: Any, tmp_path: Path) -> None:
    code = """if True:
        import json, sys
        from tensorwire.metrics import observed_job
        observed_job.announce("127.0.0.1:1")
        print(json.dumps([(a.pid, a.address) for a in observed_job.discover()]), flush=True)
        """
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    ((_, address),) = json.loads(done.stdout)
    assert address == "127.0.0.1:1"
    assert observed_job.discover() == []
    assert list(observed_job.folder().iterdir()) == []


def test_a_killed_task_is_not_found_and_leaves_nothing() -> None:
    code = """if True:
        import time
        from tensorwire.metrics import observed_job
        observed_job.announce("127.0.0.1:1")
        print("announced", flush=True)
        time.sleep(60)
        """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as task:
        assert task.stdout is not None
        task.stdout.readline()
        assert [found.pid for found in observed_job.discover()] == [task.pid]
        task.kill()
    assert observed_job.discover() == []
    assert list(observed_job.folder().iterdir()) == []


def test_only_the_owner_reads_the_folder() -> None:
    observed_job.announce("127.0.0.1:1")
    assert stat.S_IMODE(observed_job.folder().stat().st_mode) == 0o700
    assert [found.pid for found in observed_job.discover()] == [os.getpid()]


def test_an_endpoint_that_does_not_answer_is_said_with_the_reason(
    served: Callable[..., str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        quiet = f"127.0.0.1:{silent.getsockname()[1]}"
        answers = observed_job.fetch_all([served(), quiet, f"unix:{tmp_path}/none"], 0.5)
    assert answers[0].metrics == FIGURES
    assert "timed out" in answers[1].error
    assert "No such file" in answers[2].error


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:x", "unix:relative", "h:70000"]
)
def test_what_is_no_endpoint_is_a_wrong_usage(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT or unix:PATH"):
        observed_job.addresses_of(address)
