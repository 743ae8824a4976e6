"""Wrong maps, wrong variables, used ports, and strangers on the data port, on grpc++."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tensorwire.bench.lab.ports import PortLease
from tensorwire.cluster import data_port, second_data_port
from tensorwire.errors import TensorwireError

from .support import START_TIMEOUT_S, TensorFlowCluster, task_environment, tf1
from .test_sessions import Background

pytestmark = [
    pytest.mark.core,
    pytest.mark.timeout(180, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]

PS = "/job:ps/task:0"
W0 = "/job:worker/task:0"
MAP_NAME = ".endpoint_map"
JOINING_CHIEF = Path(__file__).with_name("joining_chief.py")


@contextlib.contextmanager
def mapped_cluster(jobs: Mapping[str, int]) -> Iterator[TensorFlowCluster]:
    """A cluster whose tasks are not started, with a data address for each to use in a map."""
    with TensorFlowCluster("grpc++", jobs) as cluster:
        lease = PortLease()
        for address in addresses(cluster):
            cluster.mapped[address] = f"127.0.0.1:{lease.take()}"
        yield cluster
        lease.release()


@pytest.fixture
def pair() -> Iterator[TensorFlowCluster]:
    """A ps and a worker."""
    with mapped_cluster({"ps": 1, "worker": 1}) as cluster:
        yield cluster


def addresses(cluster: TensorFlowCluster) -> list[str]:
    return [address for hosts in cluster.spec.values() for address in hosts]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def good_map(cluster: TensorFlowCluster) -> list[str]:
    return [f"{address}={cluster.mapped[address]}" for address in addresses(cluster)]


def refusal(
    cluster: TensorFlowCluster, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Starts the ps, which must refuse to serve; returns the last line that it wrote."""
    task = cluster.begin("ps", 0, env, cwd)
    with pytest.raises(TensorwireError, match="has ended"):
        task.channel.receive(START_TIMEOUT_S)
    task.process.wait(30)
    said = [
        line for line in task.log.read_text().splitlines() if "grpc++" in line or "Error" in line
    ]
    assert task.poll() == 1, task.tail()
    return said[-1]


def step(cluster: TensorFlowCluster) -> float:
    """Runs a step that sends a tensor from the ps to worker:0."""

    def build() -> Any:
        with tf.device(PS):
            value = tf.identity(tf1.placeholder(tf.float32, [], name="value"))
        with tf.device(W0):
            return value + 1.0

    return float(cluster.run(build, {"value": 2.0}))


# --- .endpoint_map -------------------------------------------------------------------------------


@pytest.mark.parametrize("by_variable", [False, True], ids=["in-cwd", "by-variable"])
def test_a_map_names_the_data_ports(
    pair: TensorFlowCluster, tmp_path: Path, by_variable: bool
) -> None:
    lines = ["# tasks of this job", "", *good_map(pair)]
    file = tmp_path / ("elsewhere.map" if by_variable else MAP_NAME)
    file.write_text("\n".join(lines) + "\n")
    pair.start_all(
        env={"TENSORWIRE_ENDPOINT_MAP": str(file)} if by_variable else None,
        cwd=None if by_variable else tmp_path,
    )
    assert step(pair) == 3.0
    assert pair.stats("ps:0")["tx_bytes"] > 0
    for address in addresses(pair):
        socket.create_connection(("127.0.0.1", port_of(pair.mapped[address])), 5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", data_port(port_of(address))), 5)


def test_a_line_for_no_task_of_the_cluster_is_named(
    pair: TensorFlowCluster, tmp_path: Path
) -> None:
    (tmp_path / MAP_NAME).write_text("\n".join([*good_map(pair), "10.9.8.7:3333=127.0.0.1:5555"]))
    said = refusal(pair, cwd=tmp_path)
    assert MAP_NAME in said
    assert "10.9.8.7:3333" in said


def test_a_task_without_a_line_has_the_port_of_the_rule(
    pair: TensorFlowCluster, tmp_path: Path
) -> None:
    (tmp_path / MAP_NAME).write_text(good_map(pair)[0])
    pair.start_all(cwd=tmp_path)
    assert step(pair) == 3.0
    ps, worker = addresses(pair)
    socket.create_connection(("127.0.0.1", port_of(pair.mapped[ps])), 5).close()
    socket.create_connection(("127.0.0.1", data_port(port_of(worker))), 5).close()


def test_two_tasks_with_one_data_port_are_named(pair: TensorFlowCluster, tmp_path: Path) -> None:
    ps, worker = addresses(pair)
    taken = f"127.0.0.1:{data_port(port_of(worker))}"
    (tmp_path / MAP_NAME).write_text(f"{ps}={taken}\n")
    said = refusal(pair, cwd=tmp_path)
    assert MAP_NAME in said
    assert "/job:ps/replica:0/task:0 and /job:worker/replica:0/task:0" in said
    assert taken in said


def test_a_map_named_by_the_variable_must_exist(pair: TensorFlowCluster, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.map")
    said = refusal(pair, env={"TENSORWIRE_ENDPOINT_MAP": missing})
    assert missing in said
    assert "TENSORWIRE_ENDPOINT_MAP" in said


def test_a_task_that_joins_is_found_where_its_line_says(tmp_path: Path) -> None:
    with mapped_cluster({"chief": 1, "ps": 1, "worker": 1}) as cluster:
        lines = good_map(cluster)
        file = tmp_path / MAP_NAME
        file.write_text("\n".join(lines[:2]) + "\n")
        without_worker = {job: hosts for job, hosts in cluster.spec.items() if job != "worker"}
        cluster.ready(cluster.begin("ps", 0, cwd=tmp_path, spec=without_worker))
        (worker_at := tmp_path / "worker").mkdir()
        (worker_at / MAP_NAME).write_text("\n".join(lines))
        cluster.ready(cluster.begin("worker", 0, cwd=worker_at))
        told = {"spec": cluster.spec, "line": lines[2], "map": str(file)}
        done = subprocess.run(
            [sys.executable, JOINING_CHIEF, json.dumps(told)],
            cwd=tmp_path,
            env={**os.environ, **task_environment()},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "result: 42.0" in done.stdout, done.stderr


# --- ports and variables -------------------------------------------------------------------------


def test_a_taken_data_port_is_named(pair: TensorFlowCluster) -> None:
    port = data_port(port_of(pair.spec["ps"][0]))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        said = refusal(pair)
    assert str(port) in said
    assert re.search("in use|free it", said), said


@contextlib.contextmanager
def ephemeral_data_ports(cluster: TensorFlowCluster) -> Iterator[list[int]]:
    """Gives each task a gRPC port whose data port Linux gives to outgoing connections.

    Yields the data ports. They and the gRPC ports are free.
    """
    lease = PortLease(range(13000, 20000))
    data_ports = []
    for job, hosts in cluster.spec.items():
        for index in range(len(hosts)):
            port = lease.take()
            cluster.spec[job][index] = f"127.0.0.1:{port}"
            data_ports.append(data_port(port))
    yield data_ports
    lease.release()


@contextlib.contextmanager
def outgoing_connections(ports: list[int]) -> Iterator[None]:
    """Opens connections of this process that occupy these ports."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for port in ports:
            address = server.getsockname()
            stack.enter_context(socket.create_connection(address, 5, ("127.0.0.1", port)))
        yield


def train(cluster: TensorFlowCluster) -> tuple[float, float]:
    """The loss before and after steps of worker:0 with a variable on the ps."""

    def build() -> Any:
        with tf.device(PS):
            weight = tf1.get_variable("weight", [1000], tf.float32, tf1.zeros_initializer())
        with tf.device(W0):
            loss = tf.reduce_mean((weight - 1.0) ** 2)
        return loss, tf1.train.GradientDescentOptimizer(100.0).minimize(loss)

    with tf.Graph().as_default() as graph:
        loss, step = build()
        initial = tf1.global_variables_initializer()
        with cluster.session(graph) as session:
            session.run(initial)
            first = float(session.run(loss))
            for _ in range(20):
                session.run(step)
            return first, float(session.run(loss))


def test_tasks_train_where_outgoing_connections_have_their_data_ports(
    pair: TensorFlowCluster,
) -> None:
    with ephemeral_data_ports(pair) as ports:
        with outgoing_connections(ports):
            pair.start_all(env={"TF_CPP_MIN_LOG_LEVEL": "1"})
            first, last = train(pair)
            assert last < first / 2
            for task, port in zip(("ps:0", "worker:0"), ports, strict=True):
                assert pair.stats(task)["tx_bytes"] > 0
                lines = [
                    line
                    for line in pair.tasks[task].log.read_text().splitlines()
                    if "its second one" in line
                ]
                (line,) = lines
                second = second_data_port(port - 20000)
                assert f"/job:{task.replace(':', '/replica:0/task:')} " in line
                assert f"127.0.0.1:{second}, its second one" in line
                assert f"port {port}, its gRPC port + 20000, is in use" in line
        # The ps is restarted, and now its port is free.
        pair.tasks["ps:0"].stop()
        pair.ready(pair.begin("ps", 0))
        socket.create_connection(("127.0.0.1", ports[0]), 5).close()
        first, last = train(pair)
        assert last < first / 2


def test_where_both_data_ports_are_taken_both_are_named(pair: TensorFlowCluster) -> None:
    with ephemeral_data_ports(pair) as ports, contextlib.ExitStack() as stack:
        second = second_data_port(ports[0] - 20000)
        for port in (ports[0], second):
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", port))
            taken.listen()
        said = refusal(pair)
    assert (
        f"cannot listen on port {ports[0]}: Address already in use; "
        f"cannot listen on port {second}: Address already in use. It is the data port of "
        "/job:ps/replica:0/task:0, 20000 above its gRPC port, and its second one; free one of "
        "them, or name another in a file .endpoint_map" in said
    )


def test_a_variable_with_a_bad_value_is_named(pair: TensorFlowCluster) -> None:
    """All bad values are in native/wire/tests/options_test.cc."""
    said = refusal(pair, env={"PS_ENABLE_POLLING": "perhaps"})
    assert "PS_ENABLE_POLLING=perhaps: expected" in said


@pytest.mark.parametrize(
    "variables",
    [
        {"PS_ENABLE_POLLING": "True", "WORKER_ENABLE_POLLING": "True"},
        {
            "NETWORK_PS_CORE_NUMBER": "3",
            "NETWORK_WORKER_CORE_NUMBER": "2",
            "PS_DISABLE_PIN_CORES": "False",
            "WORKER_DISABLE_PIN_CORES": "False",
            "PS_ENABLE_POLLING": "False",
            "WORKER_ENABLE_POLLING": "False",
        },
    ],
    ids=["polling", "pinned"],
)
def test_the_six_variables_are_taken(pair: TensorFlowCluster, variables: Mapping[str, str]) -> None:
    pair.start_all(env=variables)
    assert step(pair) == 3.0
    assert pair.stats("ps:0")["tx_bytes"] > 0


# --- strangers -----------------------------------------------------------------------------------


def header(version: int = 1, kind: int = 1, metadata: int = 0, payload: int = 0) -> bytes:
    """A frame's header, as in native/wire/include/tensorwire/wire/frame.h."""
    magic = 0x52495754
    return struct.pack("<IBBHQIHHQ", magic, version, kind, 0, 1, metadata, 0, 0, payload)


WRONG_HELLO = b"task=/job:worker/task:7\npeer=/job:ps/replica:0/task:5\n"
STRANGERS: dict[str, tuple[bytes, str]] = {
    "http2": (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
        r"HTTP/2|gRPC",
    ),
    "http": (b"GET / HTTP/1.1\r\nHost: ps\r\nAccept: */*\r\n\r\n", r"HTTP"),
    "garbage": (bytes(range(1, 200)) * 20, r"not tensorwire"),
    "another-version": (header(version=9), r"version 9.*version 1"),
    "request-first": (header(kind=3), r"before the greeting"),
    "unknown-kind": (header(kind=200), r"unknown kind 200"),
    "endless-metadata": (header(metadata=2**32 - 1), r"bytes of metadata"),
    "endless-payload": (header(payload=2**63), r"bytes of payload"),
    "another-task": (
        header(metadata=len(WRONG_HELLO)) + WRONG_HELLO,
        r"wants /job:ps/replica:0/task:5.*this is /job:ps/replica:0/task:0",
    ),
}


def closed_by_peer(connection: socket.socket, timeout_s: float) -> bool:
    connection.settimeout(timeout_s)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_told_of_in_one_line_and_training_goes_on(
    wire_cluster: TensorFlowCluster, who: str
) -> None:
    said, words = STRANGERS[who]
    port = data_port(port_of(wire_cluster.spec["ps"][0]))
    before = wire_cluster.log_sizes()
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            value = tf.random.uniform([2000], minval=1.0, maxval=2.0)
        with tf.device("/job:worker/task:1"):
            least = tf.reduce_min(value)
        with wire_cluster.session(graph) as session:
            session.run(least)
            stop = time.monotonic() + 1.0

            def train() -> float:
                smallest = 2.0
                while time.monotonic() < stop:
                    smallest = min(smallest, float(session.run(least)))
                return smallest

            training = Background(train)
            # Each stranger has its own host address, because repeated warnings about a host are
            # suppressed.
            host = f"127.0.7.{1 + list(STRANGERS).index(who)}"
            with socket.create_connection(("127.0.0.1", port), 5, (host, 0)) as stranger:
                own = f"{host}:{stranger.getsockname()[1]}"
                stranger.sendall(said)
                assert closed_by_peer(stranger, 30)
            kind, smallest = training.outcome(30)
            assert kind == "value", smallest
            assert smallest >= 1.0
    lines = [line for line in wire_cluster.logged_since(before).splitlines() if "grpc++" in line]
    assert len(lines) == 1, lines
    assert re.search(words, lines[0]), lines[0]
    assert own in lines[0], lines[0]


def test_a_stranger_that_comes_again_and_again_does_not_fill_the_log(
    wire_cluster: TensorFlowCluster,
) -> None:
    port = data_port(port_of(wire_cluster.spec["ps"][0]))
    before = wire_cluster.log_sizes()
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            connection = socket.create_connection(("127.0.0.1", port), 5, ("127.0.8.1", 0))
            stack.enter_context(connection)
            connection.sendall(STRANGERS["http"][0])
        assert closed_by_peer(connection, 30)
    assert step(wire_cluster) == 3.0
    assert wire_cluster.logged_since(before).count("127.0.8.1") == 1


def test_a_stranger_that_says_nothing_disturbs_nobody(wire_cluster: TensorFlowCluster) -> None:
    port = data_port(port_of(wire_cluster.spec["ps"][0]))
    silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(50)]
    try:
        assert step(wire_cluster) == 3.0
    finally:
        for connection in silent:
            connection.close()
    assert step(wire_cluster) == 3.0


def test_a_data_address_that_is_a_grpc_port_is_a_clear_error(
    pair: TensorFlowCluster, tmp_path: Path
) -> None:
    """If a map names the ps's gRPC port as data port, the step fails in time and says so."""
    (tmp_path / "ps").mkdir()
    (tmp_path / "worker").mkdir()
    ps, worker = pair.spec["ps"][0], pair.spec["worker"][0]
    (tmp_path / "ps" / MAP_NAME).write_text("\n".join(good_map(pair)))
    (tmp_path / "worker" / MAP_NAME).write_text(f"{ps}={ps}\n{worker}={pair.mapped[worker]}\n")
    tasks = [
        pair.begin("ps", 0, cwd=tmp_path / "ps"),
        pair.begin("worker", 0, cwd=tmp_path / "worker"),
    ]
    pair.ready(*tasks)
    with pytest.raises(tf.errors.OpError) as caught:
        step(pair)
    assert ps in caught.value.message
    assert re.search("HTTP/2|gRPC port", caught.value.message), caught.value.message


def test_the_log_of_a_good_start_has_no_warning_of_ours(pair: TensorFlowCluster) -> None:
    pair.start_all(env={"TF_CPP_MIN_LOG_LEVEL": "0", "HOME": os.environ.get("HOME", "/")})
    step(pair)
    ours = [line for line in pair.logged_since({}).splitlines() if "grpc++" in line]
    assert len(ours) >= len(pair.tasks)  # each says where it listens
    assert all(re.match(r"I|\S+ \S+: I ", line) for line in ours), ours


@pytest.mark.parametrize("mistake", ["a ps on grpc", "a wrong line in the map"])
def test_a_task_that_is_up_and_cannot_be_reached_is_named_once(
    pair: TensorFlowCluster, tmp_path: Path, mistake: str
) -> None:
    ps_address, worker_address = addresses(pair)
    data_address = f"127.0.0.1:{data_port(port_of(ps_address))}"
    map_file = tmp_path / MAP_NAME
    if mistake == "a ps on grpc":
        pair.protocol = "grpc"
        ps = pair.begin("ps", 0)
        pair.protocol = "grpc++"
        origin = "its gRPC port + 20000"
    else:
        ps = pair.begin("ps", 0)
        data_address = pair.mapped[ps_address]
        map_file.write_text("\n".join(good_map(pair)))
        origin = f"from {map_file}"
    worker = pair.begin("worker", 0, {"TF_CPP_MIN_LOG_LEVEL": "1"}, tmp_path)
    pair.ready(ps, worker)

    def warnings() -> list[str]:
        lines = worker.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "could not be reached" in line]

    def build() -> Any:
        with tf.device(PS):
            sent = tf.random.uniform([])
        with tf.device(W0):
            return sent + 1.0

    deadline = time.monotonic() + 60
    while not warnings() and time.monotonic() < deadline:
        with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
            pair.run(build)
    with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
        pair.run(build)
    (warning,) = warnings()
    assert f"the data port of /job:ps/replica:0/task:0 at {data_address} could not be" in warning
    assert f"Connection refused. This port is {origin}" in warning
    assert f"If its gRPC port {ps_address} answers:" in warning
    assert 'started with protocol="grpc++"' in warning
    assert worker_address not in warning
