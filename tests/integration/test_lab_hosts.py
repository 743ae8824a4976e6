"""Hosts in a box: the link has its rate, and nothing of it outlives its owner."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorwire.errors import TensorwireError
from tensorwire.lab import Host, LocalCluster, two_hosts

pytest.importorskip("pyroute2")

GBIT_PER_S = 0.2
PAYLOAD_BYTES = 20_000_000

OWNER = """
import time
from tensorwire.lab import LocalCluster, two_hosts
with two_hosts(1.0) as hosts, LocalCluster({"task": 1}, {"task": hosts[0]}) as cluster:
    task = cluster.start("task", 0, ["sleep", "600"])
    print(task.pid, flush=True)
    time.sleep(600)
"""

RECEIVER = """
import socket, sys, time
host, _, port = sys.argv[1].rpartition(":")
with socket.create_server((host, int(port))) as server:
    stream, _ = server.accept()
    total, began = 0, time.monotonic()
    while data := stream.recv(1 << 16):
        total += len(data)
    print(total, time.monotonic() - began)
"""

SENDER = """
import socket, sys, time
host, _, port = sys.argv[1].rpartition(":")
deadline = time.monotonic() + 20
while True:
    try:
        stream = socket.create_connection((host, int(port)), 1)
        break
    except OSError:
        assert time.monotonic() < deadline
        time.sleep(0.05)
stream.sendall(bytes(int(sys.argv[2])))
stream.close()
"""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    with two_hosts(GBIT_PER_S) as made:
        yield made


def network_of(process: int | str) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


def processes_in(network: str) -> list[str]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if network_of(directory.name) == network:
                found.append(directory.name)
    return found


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.newest
def test_tasks_on_two_hosts_reach_each_other_at_the_rate_of_the_link(
    tmp_path: Path, hosts: tuple[Host, Host]
) -> None:
    jobs = {"receiver": hosts[0], "sender": hosts[1]}
    arrived_before = hosts[0].received_bytes()
    with LocalCluster({"receiver": 1, "sender": 1}, jobs) as cluster:
        address = cluster.spec["receiver"][0]
        python = [sys.executable, "-c"]
        output = tmp_path / "received"
        receiver = cluster.start("receiver", 0, [*python, RECEIVER, address], stdout=output)
        sender = cluster.start("sender", 0, [*python, SENDER, address, str(PAYLOAD_BYTES)])
        cluster.wait([receiver, sender], timeout_s=60)
        networks = {
            network_of("self"),
            *(Path(host.namespace or "").stat().st_ino for host in hosts),
        }
        assert len(networks) == 3
    total, took_s = output.read_text().split()
    assert int(total) == PAYLOAD_BYTES
    assert hosts[0].received_bytes() - arrived_before >= PAYLOAD_BYTES
    # A busy machine may be slower, but nothing gets there faster than the link allows.
    assert float(took_s) > 0.9 * PAYLOAD_BYTES * 8 / (GBIT_PER_S * 1e9)


@pytest.mark.newest
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.usefixtures("hosts")
def test_nothing_is_left_in_the_namespaces_of_an_owner_that_was_ended(
    number: signal.Signals,
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        task = int(owner.stdout.readline())
        wait_until(lambda: network_of(task) != network_of("self"), "the task is in its namespace")
        network = network_of(task)

        owner.send_signal(number)
        owner.wait(20)
    finally:
        owner.kill()
        owner.wait(20)
        assert owner.stdout is not None
        owner.stdout.close()

    wait_until(lambda: not processes_in(network), "the task has ended")


@pytest.mark.newest
def test_a_rate_that_no_link_can_have_is_refused() -> None:
    with pytest.raises(TensorwireError, match="up to 32"), two_hosts(100.0):
        pass


@pytest.mark.newest
def test_missing_pyroute2_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)

    with pytest.raises(TensorwireError, match=r"pip install 'tensorwire\[lab\]'"):
        Host("198.18.0.1", "/proc/self/ns/net").received_bytes()
