"""`tensorwire bench transfer` on this machine and between two hosts, with a real TensorFlow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorwire.lab.ports import PortLease

pytestmark = pytest.mark.tensorflow

COMMAND = [sys.executable, "-m", "tensorwire.cli.main", "bench", "transfer"]
RESULT_FIELDS = [
    "protocol",
    "tensor_fuse",
    "data_mb",
    "tensors",
    "iters",
    "mb_per_s",
    "step_ms",
    "cpu_s_per_gb",
]

RECORD_FIELDS = ["command", "version", "tensorflow", "host", "time", "results", "ratios"]
RECORD_FIELDS += ["intervals", "ceilings", "noise"]


def bench(*arguments: str, timeout_s: float = 250) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=timeout_s
    )


def load(path: Path, done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def check_result(result: dict[str, Any], protocol: str, data_mb: float, iters: int) -> None:
    assert list(result) == RESULT_FIELDS
    assert result["protocol"] == protocol
    assert result["tensor_fuse"] is False
    assert result["data_mb"] == data_mb
    assert result["tensors"] == 1
    assert result["iters"] == iters
    step = result["step_ms"]
    assert list(step) == ["p50", "p90", "min"]
    assert 0 < step["min"] <= step["p50"] <= step["p90"]
    # The rate is that of a typical step, so it is not above the fastest one's.
    assert 0 < result["mb_per_s"] <= data_mb / step["min"] * 1e3 * 1.001


@pytest.fixture
def ports() -> Iterator[list[int]]:
    lease = PortLease()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(lease.release)
        yield [lease.take(), lease.take()]


def test_both_protocols_and_the_ceilings_in_one_call(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = bench("--data-mb", "2", "--iters", "7", "--rounds", "3", "--json", str(path))
    record = load(path, done)
    assert list(record) == RECORD_FIELDS
    assert record["command"] == "bench transfer"
    assert re.fullmatch(r"2\.\d+\.\d+.*", record["tensorflow"])
    assert list(record["host"]) == ["cpu", "cores", "kernel"]
    assert [result["protocol"] for result in record["results"]] == ["grpc", "grpc++"]
    for result in record["results"]:
        check_result(result, result["protocol"], data_mb=2.0, iters=7)
        assert result["cpu_s_per_gb"] > 0
    assert set(record["ratios"]) == {"grpc++/grpc", "grpc++/tcp", "grpc++/memcpy"}
    assert all(ratio > 0 for ratio in record["ratios"].values())
    assert set(record["intervals"]) == set(record["ratios"])
    assert set(record["ceilings"]) == {"tcp", "memcpy"}
    assert set(record["noise"]["scatter"]) == {"grpc", "grpc++", "tcp", "memcpy"}
    assert all(text in done.stdout for text in ("grpc++", "tcp (raw)", "memcpy (raw)"))
    assert "measuring" in done.stderr


@pytest.mark.newest
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")
def test_in_a_lab_the_tensor_goes_over_the_link_and_not_around_it(tmp_path: Path) -> None:
    pytest.importorskip("pyroute2")
    path = tmp_path / "record.json"
    size = ["--data-mb=4", "--iters=4", "--rounds=2", "--protocols=grpc++"]
    done = bench("--lab", "hosts=2,rate=400mbit", *size, "--json", str(path))
    record = load(path, done)
    (result,) = record["results"]
    check_result(result, "grpc++", data_mb=4.0, iters=4)
    # A short cut through the machine's memory would be a hundred times faster.
    assert result["mb_per_s"] < 1.05 * 50
    ceilings = {"tcp", *(["iperf3"] if shutil.which("iperf3") else [])}
    assert set(record["ratios"]) == {f"grpc++/{ceiling}" for ceiling in ceilings}
    assert "tcp (raw)" in done.stdout
    assert record["lab"]["network"] is True
    assert (record["lab"]["hosts"], record["lab"]["rate_mbit_per_s"]) == (2, 400.0)
    assert "note: measured between the hosts of a lab: 2 hosts, 400 Mbit/s" in done.stdout


@pytest.mark.newest
def test_one_protocol_has_no_ratio_between_protocols(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = bench("--data-mb", "0.5", "--iters", "4", "--protocols", "grpc", "--json", str(path))
    record = load(path, done)
    (result,) = record["results"]
    check_result(result, "grpc", data_mb=0.5, iters=4)
    assert set(record["ratios"]) == {"grpc/tcp", "grpc/memcpy"}


@pytest.mark.parametrize("protocol", ["grpc", "grpc++"])
def test_two_hosts_end_with_the_transfer_rate(
    tmp_path: Path, ports: list[int], protocol: str
) -> None:
    hosts = ["--ps-hosts", f"127.0.0.1:{ports[0]}", "--worker-hosts", f"127.0.0.1:{ports[1]}"]
    path = tmp_path / "record.json"
    with subprocess.Popen(
        [*COMMAND, *hosts, "--job", "ps", "--task", "0", "--protocols", protocol],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as ps:
        worker_part = ["--job", "worker", "--task", "0", "--protocols", protocol]
        sizes = ["--data-mb", "1", "--iters", "5", "--json", str(path)]
        done = bench(*hosts, *worker_part, *sizes)
        record = load(path, done)
        _, ps_err = ps.communicate(timeout=60)
    assert ps.returncode == 0, ps_err
    assert f"waiting for the worker at 127.0.0.1:{ports[1]}" in ps_err
    rate = re.fullmatch(r"transfer rate: (\d+\.\d{6}) MB/s", done.stdout.splitlines()[-1])
    assert rate is not None
    (result,) = record["results"]
    check_result(result, protocol, data_mb=1.0, iters=5)
    assert result["mb_per_s"] == pytest.approx(float(rate[1]), rel=1e-4)
    assert result["cpu_s_per_gb"] is None
    assert record["ratios"] == {}


@pytest.mark.newest
def test_a_peer_that_does_not_come_is_named_at_the_deadline(ports: list[int]) -> None:
    hosts = ["--ps-hosts", f"127.0.0.1:{ports[0]}", "--worker-hosts", f"127.0.0.1:{ports[1]}"]
    done = bench(*hosts, "--job", "worker", "--protocols", "grpc", "--peer-timeout", "1")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"tensorwire: error: no ps at 127.0.0.1:{ports[0]} after 1 s")
    assert "Traceback" not in done.stderr


@pytest.mark.newest
def test_a_port_in_use_is_named(ports: list[int]) -> None:
    with socket.create_server(("127.0.0.1", ports[0])):
        hosts = ["--ps-hosts", f"127.0.0.1:{ports[0]}", "--worker-hosts", f"127.0.0.1:{ports[1]}"]
        done = bench(*hosts, "--job", "ps", "--protocols", "grpc")
    assert done.returncode == 1
    assert f"port {ports[0]} is in use" in done.stderr.splitlines()[-1]


@pytest.mark.newest
def test_a_ps_whose_worker_went_early_says_so(ports: list[int]) -> None:
    hosts = ["--ps-hosts", f"127.0.0.1:{ports[0]}", "--worker-hosts", f"127.0.0.1:{ports[1]}"]
    with subprocess.Popen(
        [*COMMAND, *hosts, "--job", "ps", "--protocols", "grpc"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as ps:
        assert ps.stderr is not None
        with socket.create_server(("127.0.0.1", ports[1])):  # a worker that does nothing
            for line in ps.stderr:
                if "serving the worker" in line:
                    break
        rest = ps.stderr.read()
        ps.wait(60)
    assert ps.returncode == 1
    expected = f"tensorwire: error: the worker at 127.0.0.1:{ports[1]} went before it was done"
    assert rest.splitlines() == [expected]
