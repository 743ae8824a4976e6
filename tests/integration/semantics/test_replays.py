"""What two TensorFlow tasks said, damaged, is said again to tasks that are at work."""

from __future__ import annotations

import random
import re
import socket
import struct
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
from .record_session import FOLDER, PS, WORKER
from .support import TensorFlowCluster, tf1
from .test_sessions import Background

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.newest,
    pytest.mark.timeout(240, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]

REPLAYS = 10_000
SEED = 1803
HOSTS = 4  # that replay at the same time
HEADER = struct.Struct("<4sBBHQIHHQ")
METADATA_AT, METHOD_AT, PAYLOAD_AT = 16, 20, 24
METHODS = (0, 1, 2, 3, 16, 17, 18, 0xFFFF)
NUMBERS = (0, 1, 2, 31, 33, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def frames_of(said: bytes) -> list[bytes]:
    frames = []
    while said:
        _, _, _, _, _, metadata, _, _, payload = HEADER.unpack_from(said)
        end = HEADER.size + metadata + payload
        frames.append(said[:end])
        said = said[end:]
    return frames


def damaged_frame(frame: bytes, chance: random.Random) -> bytes:
    """A frame with a bit, a byte or a piece of another, or with a number that is not true."""
    at = chance.randrange(len(frame))
    match chance.randrange(8):
        case 0:
            return frame[:at] + bytes([frame[at] ^ 1 << chance.randrange(8)]) + frame[at + 1 :]
        case 1:
            return frame[:at] + chance.randbytes(chance.randrange(1, 9)) + frame[at + 1 :]
        case 2:
            return frame[:at] + chance.randbytes(chance.randrange(100)) + frame[at:]
        case 3:
            return frame[:at]
        case 4:
            return frame[:at] + frame[at + chance.randrange(50) :]
        case 5:
            where, kind = chance.choice([(METADATA_AT, "<I"), (PAYLOAD_AT, "<Q")])
            number = chance.choice(NUMBERS) & (2 ** (8 * struct.calcsize(kind)) - 1)
            return (
                frame[:where] + struct.pack(kind, number) + frame[where + struct.calcsize(kind) :]
            )
        case 6:
            method = struct.pack("<H", chance.choice(METHODS))
            return frame[:METHOD_AT] + method + frame[METHOD_AT + 2 :]
        case _:
            return frame[:5] + bytes([chance.randrange(17)]) + frame[6:]


def damaged(frames: list[bytes], chance: random.Random) -> bytes:
    """These frames after one to four things went wrong, mostly behind the greeting."""
    frames = list(frames)
    for _ in range(chance.randrange(1, 5)):
        first = 0 if len(frames) == 1 or chance.random() < 0.05 else 1
        at = chance.randrange(first, len(frames))
        match chance.randrange(8):
            case 0:
                frames.insert(chance.randrange(first, len(frames)), frames[at])
            case 1:
                other = chance.randrange(first, len(frames))
                frames[at], frames[other] = frames[other], frames[at]
            case 2 if len(frames) > 2:
                del frames[at]
            case 3:
                frames = frames[: at + 1]
            case _:
                frames[at] = damaged_frame(frames[at], chance) or b"T"
    return b"".join(frames)


def replay(address: tuple[str, int], host: str, said: bytes) -> None:
    """Says all of it and hears what comes back. The task ends it, or it is a hang."""
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
    """The frames that a client said to this job's task, as if to the one that lives now."""
    said = (FOLDER / f"to_{job}").read_bytes()
    assert said.count(b"device:CPU:0;") >= 5
    return frames_of(re.sub(rb"(?<=device:CPU:0;)[0-9a-f]{16}(?=;)", incarnation, said))


class Trainer:
    """Steps between the tasks, each of which must be right, until it is told to stop."""

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
    # Protobuf and TensorFlow have lines of their own about what they refuse.
    lines = [line for line in pair.logged_since(logged).splitlines() if "grpc++" in line]
    assert 1 <= len(lines) <= len(processes) * HOSTS * minutes, lines[:50]
    deadline = time.monotonic() + 20
    for process, before, rss in zip(processes, descriptors, memory, strict=True):
        while process.num_fds() > before + 10:
            assert time.monotonic() < deadline, (process.num_fds(), before)
            time.sleep(0.05)
        assert process.memory_info().rss - rss < 200 << 20
