"""Access to the data port: the address on which it listens, and the job token."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tensorwire
from tensorwire.cluster import data_port

from .support import TensorFlowCluster, tf1

pytestmark = [
    pytest.mark.core,
    pytest.mark.timeout(180, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]

SAME = "TENSORWIRE_TOKEN_FILE must give every task of the job the same token"

SPOKEN = {"TF_CPP_MIN_LOG_LEVEL": "0"}  # warnings go to the log


@pytest.fixture
def pair() -> Iterator[TensorFlowCluster]:
    """A ps and a worker that are not started."""
    with TensorFlowCluster("grpc++", {"ps": 1, "worker": 1}) as cluster:
        yield cluster


@pytest.fixture
def token(tmp_path: Path) -> dict[str, str]:
    """The environment of a task that has a token."""
    path = tmp_path / "token"
    path.write_text(secrets.token_hex(32) + "\n")
    path.chmod(0o400)
    return {"TENSORWIRE_TOKEN_FILE": str(path)}


def ports(cluster: TensorFlowCluster) -> dict[str, int]:
    """The gRPC port of each task."""
    return {job: int(hosts[0].rpartition(":")[2]) for job, hosts in cluster.spec.items()}


def step(cluster: TensorFlowCluster, elements: int) -> float:
    """The sum of a tensor that the ps makes and worker:0 receives."""

    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            value = tf.ones([elements]) * tf1.placeholder(tf.float32, [], name="value")
        with tf.device("/job:worker/task:0"):
            return tf.reduce_sum(value)

    return float(cluster.run(build, {"value": 2.0}))


def refused(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_data_port_is_open_where_grpc_is_unless_an_address_is_named(
    pair: TensorFlowCluster,
) -> None:
    port = ports(pair)
    # As the ps calls itself, and as the worker calls it: a Service, a second interface.
    own = {"ps": [f"localhost:{port['ps']}"], "worker": [f"127.0.0.1:{port['worker']}"]}
    known = own | {"ps": [f"127.0.0.3:{port['ps']}"]}
    bound = SPOKEN | {"TENSORWIRE_BIND": "127.0.0.1"}
    pair.ready(pair.begin("ps", 0, SPOKEN, spec=own), pair.begin("worker", 0, bound, spec=known))
    assert step(pair, 1000) == 2000.0
    assert not refused(("127.0.0.2", data_port(port["ps"])))
    assert refused(("127.0.0.2", data_port(port["worker"])))
    assert not refused(("127.0.0.1", data_port(port["worker"])))


@pytest.mark.parametrize(("transport", "tls"), [("tcp", "0"), ("memory", "0"), ("tcp", "1")])
def test_tasks_with_the_same_token_work_together_and_a_stranger_gets_nothing(
    pair: TensorFlowCluster, token: dict[str, str], transport: str, tls: str
) -> None:
    pair.start_all(env=token | {"TENSORWIRE_TRANSPORT": transport, "TENSORWIRE_TLS": tls})
    before = pair.stats("ps:0")
    assert step(pair, 1 << 20) == 2.0 * (1 << 20)

    # The header of a request, then garbage, as from a scanner or a task of another job.
    def frame(kind: int, metadata: bytes) -> bytes:
        return struct.pack("<4sBBHQIHHQ", b"TWIR", 1, kind, 0, 1, len(metadata), 1, 0, 0) + metadata

    hello, request = 1, 3
    for said in (
        frame(request, b"x" * 100),
        frame(hello, b"task=/job:worker/replica:0/task:0\n") + frame(request, b"x" * 100),
    ):
        address = ("127.0.0.1", data_port(ports(pair)["ps"]))
        with socket.create_connection(address, 10) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            heard = b"".join(iter(lambda: stranger.recv(4096), b""))
        assert heard[:6] == b"TWIR\x01\x09", heard  # goodbye, and nothing else
        assert len(heard) == 32 + struct.unpack_from("<I", heard, 16)[0]
    assert step(pair, 100) == 200.0
    assert pair.stats("ps:0")["connects"] <= before["connects"] + 4


@pytest.mark.parametrize(
    ("of_worker", "reason"),
    [
        ("another", "the client's job token is not the server's"),
        ("none", "the client has no job token, and the server has one"),
    ],
)
def test_a_step_with_a_task_that_has_another_token_or_none_fails_and_says_what_to_do(
    pair: TensorFlowCluster, token: dict[str, str], of_worker: str, reason: str
) -> None:
    other = {"TENSORWIRE_TOKEN": secrets.token_hex(32)} if of_worker == "another" else {}
    pair.ready(pair.begin("ps", 0, token | SPOKEN), pair.begin("worker", 0, other | SPOKEN))
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError) as failure:
            step(pair, 100)
        assert f"{reason}: {SAME}" in str(failure.value)
    log = pair.tasks["ps:0"].log.read_text()
    assert log.count(reason) == 1, log
    secret = Path(token["TENSORWIRE_TOKEN_FILE"]).read_text().strip()
    for task in pair.tasks.values():
        assert not [each for each in (secret, *other.values()) if each in task.log.read_text()]


@pytest.mark.newest
@pytest.mark.slow
def test_check_greets_the_tasks_of_a_cluster_as_a_peer(
    pair: TensorFlowCluster, token: dict[str, str]
) -> None:
    # Another address than that of this process, so that the link is measured.
    pair.spec["worker"][0] = pair.spec["worker"][0].replace("127.0.0.1", "127.0.0.2")
    pair.start_all(env=token)
    hosts = {job: addresses[0] for job, addresses in pair.spec.items()}
    command = [sys.executable, "-m", "tensorwire.cli.main", "check", "--ps-hosts", hosts["ps"]]
    command += ["--worker-hosts", hosts["worker"]]

    def check(env: dict[str, str]) -> tuple[int, dict[str, str]]:
        environment = {**os.environ, **env}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        lines = [line[6:].partition(": ") for line in done.stdout.splitlines()]
        return done.returncode, {
            subject: text for subject, _, text in lines if not subject.startswith(" ")
        }

    status, found = check(token)
    assert status == 0, found
    assert (
        f"{hosts['ps']} and its data port 127.0.0.1:{data_port(ports(pair)['ps'])} answer"
        in (found["ps:0"])
    )
    assert "/job:worker/replica:0/task:0 and accepts this host" in found["worker:0"]
    assert (
        found["versions"] == f"all tasks that answer have tensorwire {tensorwire.__version__}, too"
    )
    assert found["clocks"].startswith("the clock of ")
    assert "the lowest is " in found["links"]
    assert found["links"].endswith(", to worker:0")

    status, found = check({"TENSORWIRE_TOKEN_FILE": "", "TENSORWIRE_TOKEN": ""})
    assert status == 1
    assert "the client has no job token, and the server has one" in found["ps:0"]
    assert "versions" not in found
