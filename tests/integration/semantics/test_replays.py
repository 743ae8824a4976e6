"""Recorded and damaged messages of two TensorFlow tasks, replayed to running tasks."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tensorwire.cluster import data_port

from .conftest import LOG_EVERYTHING
from .frames import damaged, frames_of
from .record_session import FOLDER, PS, WORKER
from .support import TensorFlowCluster, tf1
from .test_sessions import Background

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(240, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]

REPLAYS = 10_000
SEED = 1803
HOSTS = 4  # that replay at the same time


def replay(address: tuple[str, int], host: str, said: bytes) -> None:
    """Sends all bytes and reads the answers. The task must end the connection, or else it hangs."""
    with socket.create_connection(address, 20, (host, 0)) as stranger:
        try:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 16):
                pass
        except ConnectionError:
            pass


def incarnations(cluster: TensorFlowCluster) -> dict[str, bytes]:
    with tf1.Session(cluster.target()) as session:
        return {
            device.name.split("/")[1].partition(":")[2]: b"%016x" % (device.incarnation % 2**64)
            for device in session.list_devices()
            if device.device_type == "CPU"
        }


def recorded(job: str, incarnation: bytes) -> list[bytes]:
    """The frames that a client sent to this job's task, adapted to the current task."""
    said = (FOLDER / f"to_{job}").read_bytes()
    assert said.count(b"device:CPU:0;") >= 5
    return frames_of(re.sub(rb"(?<=device:CPU:0;)[0-9a-f]{16}(?=;)", incarnation, said))[0]


class Trainer:
    """Runs steps between the tasks until it is stopped; each result must be right."""

    def __init__(self, cluster: TensorFlowCluster) -> None:
        self.steps = 0
        self._cluster = cluster
        self._stop = threading.Event()
        self._background = Background(self._train)

    def go_on(self, steps: int) -> None:
        goal, deadline = self.steps + steps, time.monotonic() + 60
        while self.steps < goal:
            assert time.monotonic() < deadline, f"no step after {self.steps}"
            assert self._background.still_runs_after(0.01), self._background.outcome()

    def stop(self) -> None:
        self._stop.set()
        assert self._background.outcome() == ("value", None)

    def _train(self) -> None:
        with tf.Graph().as_default() as graph:
            with tf.device(PS):
                weights = tf1.get_variable("own", [1000], initializer=tf1.zeros_initializer())
            with tf.device(WORKER):
                gradient = tf.identity(weights) + 1.0
            with tf.device(PS):
                update = tf1.assign(weights, gradient)
            with self._cluster.session(graph) as session:
                session.run(weights.initializer)
                while not self._stop.is_set():
                    assert np.all(session.run(update) == self.steps + 1)
                    self.steps += 1


@pytest.fixture
def pair() -> Iterator[TensorFlowCluster]:
    with TensorFlowCluster("grpc++", {"ps": 1, "worker": 1}) as cluster:
        cluster.start_all(LOG_EVERYTHING)
        yield cluster


def test_ten_thousand_damaged_sessions_harm_neither_the_tasks_nor_who_trains(
    pair: TensorFlowCluster,
) -> None:
    own = incarnations(pair)
    sessions = [
        (
            ("127.0.0.1", data_port(int(pair.spec[job][0].rpartition(":")[2]))),
            recorded(job, own[job]),
        )
        for job in ("ps", "worker")
    ]
    processes = [psutil.Process(task.pid) for task in pair.tasks.values()]
    trainer = Trainer(pair)
    trainer.go_on(20)
    logged = pair.log_sizes()
    descriptors = [process.num_fds() for process in processes]
    memory = [process.memory_info().rss for process in processes]
    begin = time.monotonic()

    def attack(number: int) -> None:
        chance = random.Random(f"{SEED} {number}")
        for each in range(REPLAYS // HOSTS):
            address, frames = sessions[each % len(sessions)]
            replay(address, f"127.0.9.{1 + number}", damaged(frames, chance))

    with ThreadPoolExecutor(HOSTS) as hosts:
        list(hosts.map(attack, range(HOSTS)))
    minutes = 1 + int(time.monotonic() - begin) // 60
    trainer.go_on(20)
    trainer.stop()

    assert [task.poll() for task in pair.tasks.values()] == [None, None]
    # Protobuf and TensorFlow log their own lines about rejected messages.
    lines = [line for line in pair.logged_since(logged).splitlines() if "grpc++" in line]
    assert 1 <= len(lines) <= len(processes) * HOSTS * minutes, lines[:50]
    deadline = time.monotonic() + 20
    for process, before, rss in zip(processes, descriptors, memory, strict=True):
        while process.num_fds() > before + 10:
            assert time.monotonic() < deadline, (process.num_fds(), before)
            time.sleep(0.05)
        assert process.memory_info().rss - rss < 200 << 20
