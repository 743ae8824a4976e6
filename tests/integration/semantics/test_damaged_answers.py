"""Damaged answers of a ps to a worker that trains."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from .frames import answering, damaged_frame, frames_of
from .record_session import FOLDER, training
from .slow_wire import SlowWire, worker_by_wire
from .support import TensorFlowCluster
from .test_sessions import Background

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(240, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]

DAMAGES = 100
SEED = 1804
PATIENCE_S = 0.2  # a longer step waits for data that does not arrive


class DamagingWire(SlowWire):
    """Forwards whole frames of the target; damages the next one on request."""

    def __init__(self, port: int, target: int) -> None:
        self._chance: random.Random | None = None
        self._whole_before = 0
        recorded = [(FOLDER / f"from_{job}").read_bytes() for job in ("ps", "worker")]
        self._others = [frame for said in recorded for frame in frames_of(said)[0]]
        super().__init__(port, target)

    def damage(self, chance: random.Random) -> None:
        """Damages one of the next frames, or replaces it by a recorded frame."""
        self._whole_before = chance.randrange(6)
        self._chance = chance

    def is_done(self) -> bool:
        return self._chance is None

    def cut(self) -> None:
        """Ends the connections that are open."""
        for end in self._open[1:]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        rest = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if slow:
                    frames, rest = frames_of(rest + data)
                    data = b"".join(map(self._passed, frames))
                sink.sendall(data)
        for end in (source, sink):  # both ends are notified
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _passed(self, frame: bytes) -> bytes:
        chance = self._chance
        if chance is None:
            return frame
        if self._whole_before:
            self._whole_before -= 1
            return frame
        self._chance = None
        if chance.randrange(3) == 0:
            frame = answering(chance.choice(self._others), frame)
            if chance.randrange(2) == 0:
                return frame
        return damaged_frame(frame, chance)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[TensorFlowCluster, DamagingWire]]:
    with worker_by_wire(DamagingWire, tmp_path) as pair:
        yield pair


def test_damaged_answers_fail_steps_and_what_follows_is_right(
    pair: tuple[TensorFlowCluster, DamagingWire],
) -> None:
    cluster, wire = pair
    processes = [psutil.Process(task.pid) for task in cluster.tasks.values()]
    graph, initializer, step = training()
    outcomes: Counter[str] = Counter()
    with cluster.session(graph) as session:
        session.run(initializer)
        right = session.run(step)[1:]  # without the trained values
        memory = [process.memory_info().rss for process in processes]
        for number in range(DAMAGES):
            wire.damage(random.Random(f"{SEED} {number}"))
            while not wire.is_done():
                training_step = Background(lambda: session.run(step))
                # After a wrong length or without an answer, the step waits until the connection is
                # cut.
                if training_step.still_runs_after(PATIENCE_S):
                    wire.cut()
                outcomes[training_step.outcome()[0]] += 1
        # The rest of a damaged frame may block the connection.
        wire.cut()
        while Background(lambda: session.run(initializer)).outcome()[0] != "value":
            pass
        for _ in range(5):
            for value, expected in zip(session.run(step)[1:], right, strict=True):
                np.testing.assert_array_equal(value, expected)
    assert [task.poll() for task in cluster.tasks.values()] == [None, None]
    assert sum(outcomes.values()) - outcomes["value"] > DAMAGES / 10, outcomes
    for process, rss in zip(processes, memory, strict=True):
        assert process.memory_info().rss - rss < 200 << 20
