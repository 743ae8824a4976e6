"""`tensorwire bench transfer` on this machine and between two hosts, with a real TensorFlow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import run_in_process
from tensorwire.bench.lab.ports import PortLease

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
RECORD_FIELDS += ["intervals", "ceilings", "noise", "transports"]


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
    # The rate is that of a typical step, so it cannot exceed the rate of the fastest step.
    assert 0 < result["mb_per_s"] <= data_mb / step["min"] * 1e3 * 1.001


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """--ps-hosts and --worker-hosts on this machine, with free ports above them for the tasks."""
    lease = PortLease()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(lease.release)
        ps, worker = (lease.take(in_a_row=4) for _ in range(2))
        yield ["--ps-hosts", f"127.0.0.1:{ps}", "--worker-hosts", f"127.0.0.1:{worker}"]


@pytest.mark.core
def test_both_protocols_and_the_ceilings_in_one_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    run = run_in_process(capsys, "bench", "transfer")
    done = run("--data-mb", "2", "--iters", "7", "--rounds", "3", "--json", path)
    assert done.status == 0, done.err
    record = json.loads(path.read_text())
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
    assert all(text in done.out for text in ("grpc++", "tcp (raw)", "memcpy (raw)"))
    assert record["transports"]["grpc"] == "TCP"
    assert record["transports"]["grpc++"].startswith("shared memory")
    assert "transport: grpc TCP; grpc++ shared memory" in " ".join(done.out.split())
    said = done.err.splitlines()
    assert said[0] == "bench transfer"
    assert said[-1] == "measuring"
    assert len(set(said)) == len(said)


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
    # Through shared memory it would be a hundred times faster.
    assert result["mb_per_s"] < 1.05 * 50
    ceilings = {"tcp", *(["iperf3"] if shutil.which("iperf3") else [])}
    assert set(record["ratios"]) == {f"grpc++/{ceiling}" for ceiling in ceilings}
    assert "tcp (raw)" in done.stdout
    assert record["lab"]["network"] is True
    assert (record["lab"]["hosts"], record["lab"]["rate_mbit_per_s"]) == (2, 400.0)
    assert "note: measured between the hosts of a lab: 2 hosts, 400 Mbit/s" in done.stdout


def start_ps(hosts: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *hosts, "--job", "ps", "--task", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.newest
def test_two_hosts_end_with_the_transfer_rate(tmp_path: Path, hosts: list[str]) -> None:
    path = tmp_path / "record.json"
    with start_ps(hosts) as ps:
        sizes = ["--data-mb", "1", "--iters", "6", "--rounds", "2", "--json", str(path)]
        done = bench(*hosts, "--job", "worker", "--task", "0", *sizes)
        record = load(path, done)
        _, ps_err = ps.communicate(timeout=60)
    assert ps.returncode == 0, ps_err
    assert f"waiting for the worker at {hosts[3]}" in ps_err
    rate = re.fullmatch(r"transfer rate: (\d+\.\d{6}) MB/s", done.stdout.splitlines()[-1])
    assert rate is not None
    assert [result["protocol"] for result in record["results"]] == ["grpc", "grpc++"]
    for result in record["results"]:
        check_result(result, result["protocol"], data_mb=1.0, iters=6)
        assert result["cpu_s_per_gb"] > 0
    assert record["results"][-1]["mb_per_s"] == pytest.approx(float(rate[1]), rel=1e-4)
    assert set(record["ratios"]) == {"grpc++/grpc", "grpc/tcp", "grpc++/tcp"}
