"""A user's mistakes in starting tasks: the exact messages, which say what to do."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness import zygote
from tensorwire.bench.lab.ports import PortLease

pytestmark = [
    pytest.mark.core,
    pytest.mark.timeout(180, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]

TROUBLESHOOTING = Path(__file__).parents[3] / "docs" / "troubleshooting.md"

TASK = """
import sys
import tensorflow as tf

{imported}
cluster = {{"ps": ["127.0.0.1:{ps}"], "worker": ["127.0.0.1:{worker}"]}}
server = tf.compat.v1.train.Server(cluster, "{job}", 0, protocol="{protocol}")
print("serving", flush=True)
{then}
"""
FORMAT = "a line a task: grpc_host:port=data_host:port, as in 127.0.0.1:3333=127.0.0.1:5555"


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    lease = PortLease()
    yield {"ps": lease.take(), "worker": lease.take()}
    lease.release()


def script(
    ports: Mapping[str, int],
    *,
    imported: str = "import tensorwire.tf",
    job: str = "ps",
    protocol: str = "grpc++",
    then: str = "",
) -> list[str]:
    text = TASK.format(**ports, imported=imported, job=job, protocol=protocol, then=then)
    return [sys.executable, "-c", text]


def run(
    ports: Mapping[str, int], folder: Path, env: Mapping[str, str] | None = None, **task: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **(env or {})}
    return zygote.run(script(ports, **task), cwd=folder, env=environment, timeout_s=120)


@dataclass(frozen=True)
class Mistake:
    """Variables and an `.endpoint_map`, and the last line that the ps writes.

    {ps}, {worker}, {data} (the ps's data port) and {folder} are replaced by the test's values.
    """

    says: str
    env: dict[str, str] = field(default_factory=dict)
    map: bytes = b""


MISTAKES = {
    "a map that is a folder": Mistake(
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: grpc++: cannot read the "
        "endpoint map {folder}, which TENSORWIRE_ENDPOINT_MAP names",
        {"TENSORWIRE_ENDPOINT_MAP": "{folder}"},
    ),
    "a map that is no text": Mistake(
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: grpc++: "
        "{folder}/.endpoint_map:1: no '=' in \"????\"; expected " + FORMAT,
        map=b"\xff\xfe\x00\xc3\n",
    ),
    "an address that is none of this host's": Mistake(
        "tensorflow.python.framework.errors_impl.NotFoundError: grpc++: cannot listen on "
        "192.0.2.1:{data}: Cannot assign requested address. TENSORWIRE_BIND=192.0.2.1 must be an "
        "address of this host",
        {"TENSORWIRE_BIND": "192.0.2.1"},
    ),
    "no streams": Mistake(
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: grpc++: environment "
        "variable TENSORWIRE_STREAMS=0: expected a number from 1 to 256",
        {"TENSORWIRE_STREAMS": "0"},
    ),
    "an unknown transport": Mistake(
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: grpc++: environment "
        "variable TENSORWIRE_TRANSPORT=udp: expected auto, tcp or memory",
        {"TENSORWIRE_TRANSPORT": "udp"},
    ),
    "a pool of no number": Mistake(
        "tensorwire.errors.UsageError: environment variable TENSORWIRE_POOL_MB=1GB: expected a "
        "number",
        {"TENSORWIRE_POOL_MB": "1GB"},
    ),
}


@pytest.mark.newest
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_in_one_line(
    name: str, ports: dict[str, int], tmp_path: Path
) -> None:
    mistake = MISTAKES[name]
    known = {**{job: str(port) for job, port in ports.items()}, "folder": str(tmp_path)}
    known["data"] = str(ports["ps"] + 20000)

    def filled(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: known[found[1]], text)

    if mistake.map:
        (tmp_path / ".endpoint_map").write_bytes(mistake.map)
    done = run(ports, tmp_path, {name: filled(value) for name, value in mistake.env.items()})
    assert "serving" not in done.stdout
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == filled(mistake.says)


@pytest.mark.newest
def test_a_forgotten_import_is_in_the_page_under_tensorflows_words(
    ports: dict[str, int], tmp_path: Path
) -> None:
    done = run(ports, tmp_path, imported="")
    assert done.returncode == 1
    known = "No server factory registered for the given ServerDef"
    assert known in done.stderr
    assert known in TROUBLESHOOTING.read_text()


def test_a_grpc_port_in_use_is_named(ports: dict[str, int], tmp_path: Path) -> None:
    """The port is used by another process, or by a task of another job."""
    with socket.create_server(("", ports["ps"])):
        done = run(ports, tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server: is "
        f"port {ports['ps']} in use? `ss -ltnp | grep :{ports['ps']}` shows by which process: end "
        "it, or take another port"
    )


@pytest.mark.newest
@pytest.mark.slow
def test_a_ps_that_never_starts_is_in_the_page_under_tensorflows_words(
    ports: dict[str, int], tmp_path: Path
) -> None:
    waits = "tf.compat.v1.Session(server.target).list_devices()"
    with subprocess.Popen(
        script(ports, job="worker", then=waits),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stderr is not None
        try:
            said = next(line for line in worker.stderr if "CreateSession still waiting" in line)
        finally:
            worker.kill()
    assert "CreateSession still waiting for response from worker: /job:ps/replica:0/task:0" in said
    assert "CreateSession still waiting for response from worker" in TROUBLESHOOTING.read_text()


@pytest.mark.parametrize("protocol", ["grpc", "grpc++"])
def test_ctrl_c_ends_a_task_that_waits_in_join(
    ports: dict[str, int], tmp_path: Path, protocol: str
) -> None:
    with subprocess.Popen(
        script(ports, protocol=protocol, then="server.join()"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as task:
        assert task.stdout is not None
        try:
            assert task.stdout.readline() == "serving\n"
            task.send_signal(signal.SIGINT)
            _, said = task.communicate(timeout=60)
        finally:
            task.kill()
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert task.returncode == -signal.SIGINT
