"""Labs: links, names and CPU limits are as requested, and a lab leaves nothing behind."""

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

from tensorwire.bench.lab import Host, HostSettings, Lab, LabSettings, LocalCluster, cgroups
from tensorwire.bench.lab.settings import parse
from tensorwire.errors import TensorwireError, UsageError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")
needs_cgroups = pytest.mark.skipif(
    os.geteuid() != 0 or not cgroups.paths(1), reason="no control group with CPUs can be made here"
)

RATE = HostSettings(rate_bits_per_s=2e8)
PAYLOAD_BYTES = 20_000_000

OWNER = """
import time
from tensorwire.bench.lab import HostSettings, Lab, LabSettings, LocalCluster
settings = LabSettings.alike(2, HostSettings(1e9, cpus={cpus}))
with Lab(settings) as lab, LocalCluster({{"task": 1}}, {{"task": lab.hosts}}) as cluster:
    task = cluster.start("task", 0, ["sleep", "600"])
    print(task.pid, cluster.directory, lab.hosts[0].cgroup, flush=True)
    time.sleep(600)
"""

RECEIVER = """
import socket, sys, time
port = int(sys.argv[1])
with socket.create_server(("", port)) as server:
    stream, _ = server.accept()
    total, began = 0, time.monotonic()
    while data := stream.recv(1 << 16):
        total += len(data)
    print(total, time.monotonic() - began)
"""

SENDER = """
import socket, sys, time
deadline = time.monotonic() + 20
while True:
    try:
        stream = socket.create_connection(("host0", int(sys.argv[1])), 1)
        break
    except ConnectionRefusedError:
        assert time.monotonic() < deadline
        time.sleep(0.05)
stream.settimeout(60)
stream.sendall(bytes(int(sys.argv[2])))
stream.close()
"""


@pytest.fixture(autouse=True)
def files_in_the_tests_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture
def lab() -> Iterator[Lab]:
    pytest.importorskip("pyroute2")
    with Lab(LabSettings.alike(3, RATE)) as made:
        assert made.has_network, made.notes
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
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def transfer(tmp_path: Path, receiver: Host, sender: Host) -> float:
    """Seconds to send PAYLOAD_BYTES from one host to the other, which is found by its name."""
    jobs = {"receiver": [receiver], "sender": [sender]}
    with LocalCluster({"receiver": 1, "sender": 1}, jobs) as cluster:
        port = cluster.spec["receiver"][0].rpartition(":")[2]
        python = [sys.executable, "-c"]
        output = tmp_path / "received"
        tasks = [
            cluster.start("receiver", 0, [*python, RECEIVER, port], stdout=output),
            cluster.start("sender", 0, [*python, SENDER, port, str(PAYLOAD_BYTES)]),
        ]
        cluster.wait(tasks, timeout_s=100)
    total, took_s = output.read_text().split()
    assert int(total) == PAYLOAD_BYTES
    return float(took_s)


@needs_root
def test_every_host_is_reached_by_its_name_at_the_rate_of_its_link(
    tmp_path: Path, lab: Lab
) -> None:
    namespaces = ["/proc/self/ns/net", *(host.network for host in lab.hosts)]
    assert len({Path(each).stat().st_ino for each in namespaces}) == 4
    arrived_before = lab.hosts[0].received_bytes()
    took_s = [transfer(tmp_path, lab.hosts[0], sender) for sender in lab.hosts[1:]]
    arrived = lab.hosts[0].received_bytes()
    assert arrived_before is not None and arrived is not None
    assert arrived - arrived_before >= 2 * PAYLOAD_BYTES
    # A busy machine may be slower, but no transfer is faster than the link.
    assert RATE.rate_bits_per_s is not None
    assert min(took_s) > 0.9 * PAYLOAD_BYTES * 8 / RATE.rate_bits_per_s


@needs_root
def test_the_link_of_one_host_can_be_made_slower_while_it_is_up(tmp_path: Path, lab: Lab) -> None:
    lab.set(1, HostSettings(rate_bits_per_s=1e8))
    assert transfer(tmp_path, lab.hosts[0], lab.hosts[1]) > 0.9 * PAYLOAD_BYTES * 8 / 1e8
    assert [host.rate_bits_per_s for host in lab.settings.hosts] == [2e8, 1e8, 2e8]


@needs_root
def test_a_task_keeps_its_folder_and_has_its_hosts_name(tmp_path: Path, lab: Lab) -> None:
    with LocalCluster({"task": 1}, {"task": [lab.hosts[2]]}) as cluster:
        output = tmp_path / "said"
        task = cluster.start("task", 0, ["sh", "-c", "pwd; hostname"], stdout=output, cwd=tmp_path)
        cluster.wait([task], 30)
    assert output.read_text().split() == [str(tmp_path), "host2"]


@needs_cgroups
def test_a_host_gets_its_share_of_the_cpus_and_the_share_can_be_changed() -> None:
    shares = [HostSettings(cpus=0.5), HostSettings()]
    with Lab(LabSettings(tuple(shares))) as lab:
        assert not any("CPU" in note for note in lab.notes)
        group = lab.hosts[0].cgroup
        assert group is not None
        with LocalCluster({"task": 1}, {"task": lab.hosts}) as cluster:
            task = cluster.start("task", 0, ["sleep", "60"])
            wait_until(
                lambda: str(task.pid) in (group / "cgroup.procs").read_text(), "in its group"
            )

            def limit() -> str:
                file = "cpu.max" if (group / "cpu.max").exists() else "cpu.cfs_quota_us"
                return (group / file).read_text().split()[0]

            assert limit() == "50000"
            lab.set(0, HostSettings(cpus=2))
            assert limit() == "200000"
            lab.set(0, HostSettings())
            assert limit() in ("max", "-1")
    assert not group.exists()


@needs_cgroups
def test_what_runs_on_a_host_with_a_share_of_the_cpus_knows_its_share(tmp_path: Path) -> None:
    code = "from tensorwire.metrics.collect import usable_cores; print(usable_cores())"
    with (
        Lab(LabSettings.alike(2, HostSettings(cpus=0.3))) as lab,
        LocalCluster({"task": 1}, {"task": lab.hosts}) as cluster,
    ):
        said = tmp_path / "said"
        task = cluster.start("task", 0, [sys.executable, "-c", code], stdout=said)
        cluster.wait([task], 60)
    assert float(said.read_text()) == 0.3


@needs_root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_an_owner_that_was_ended(number: signal.Signals) -> None:
    pytest.importorskip("pyroute2")
    cpus = 1.0 if cgroups.paths(1) else None
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(cpus=cpus)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        task, directory, cgroup = owner.stdout.readline().split()
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
    wait_until(lambda: not Path(directory).exists(), "its directory is gone")
    wait_until(lambda: cgroup == "None" or not Path(cgroup).exists(), "its control group is gone")


@needs_cgroups
def test_the_next_lab_removes_the_groups_of_an_owner_that_died_with_its_guard() -> None:
    (left,) = cgroups.paths(1)
    group = cgroups.CpuGroup(left)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        (left / "cgroup.procs").write_text(str(process.pid))
        os.close(group._claim)  # as if its owner had died; now any lab may remove it
        with Lab(LabSettings.alike(2, HostSettings())):
            assert not left.exists()
        assert process.wait(20) == -signal.SIGKILL


def test_without_pyroute2_the_hosts_are_loopback_and_the_notes_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with Lab(LabSettings.alike(2, RATE)) as lab:
        assert not lab.has_network
        assert [host.address for host in lab.hosts] == ["127.0.0.1"] * 2
        (note,) = lab.notes
        assert "rate and delay are not applied" in note
        assert "pip install 'tensorwire[bench]'" in note
        with LocalCluster({"task": 2}, {"task": lab.hosts}) as cluster:
            cluster.wait([cluster.start("task", 0, ["true"])], 30)


def test_a_lab_is_read_as_it_is_written() -> None:
    fast = HostSettings(1e10, 50e-6)
    assert parse("hosts=2,rate=10gbit,delay=50us") == LabSettings.alike(2, fast)
    assert parse("rate=2.5mbit, hosts=3 ,cpus=0.5,delay=1ms") == LabSettings.alike(
        3, HostSettings(2.5e6, 1e-3, 0.5)
    )
    assert parse("hosts=2,cpus=1").document() == {
        "hosts": 2,
        "rate_mbit_per_s": None,
        "delay_us": 0.0,
        "cpus": 1.0,
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not NAME=VALUE"),
        ("2", "'2' is not NAME=VALUE"),
        ("hosts=2,", "'' is not NAME=VALUE"),
        ("hosts=", "'hosts=' is not NAME=VALUE"),
        ("rate=1gbit", "the number of hosts is missing"),
        ("hosts=2,hosts=3", "hosts is given twice"),
        ("hosts=two", "hosts must be a number, not 'two'"),
        ("hosts=1", "from 2 to 64 hosts, not 1"),
        ("hosts=65", "from 2 to 64 hosts, not 65"),
        ("hosts=2,speed=1gbit", "unknown setting 'speed'"),
        ("hosts=2,rate=10", "rate=10 is not understood: write it as 10gbit"),
        ("hosts=2,rate=10gb", "rate=10gb is not understood"),
        ("hosts=2,rate=-1gbit", "rate=-1gbit is not understood"),
        ("hosts=2,rate=100gbit", "from 10kbit to 32gbit"),
        ("hosts=2,rate=1bit", "from 10kbit to 32gbit"),
        ("hosts=2,delay=50", "delay=50 is not understood"),
        ("hosts=2,delay=1000s", "from 0us to 10s"),
        ("hosts=2,cpus=0", "0.01 or more"),
        ("hosts=2,cpus=nan", "cpus=nan is not understood"),
    ],
)
def test_a_lab_that_cannot_be_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        parse(text)


def test_a_task_that_cannot_enter_its_host_fails() -> None:
    nowhere = Host("198.18.0.1", "host0", namespaces=("--net=/proc/self/fd/no-such",))
    with (
        pytest.raises(TensorwireError, match="no-such"),
        LocalCluster({"task": 1}, {"task": [nowhere]}) as cluster,
    ):
        cluster.wait([cluster.start("task", 0, ["true"])], 30)
