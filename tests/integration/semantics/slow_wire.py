"""A wire between two tasks of this host that can delay and damage the bytes that pass."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from tensorwire.bench.lab.ports import PortLease

from .support import TensorFlowCluster

_LARGE_BYTES = 4096  # more than frames without a payload


class SlowWire:
    """Accepts connections on `port` of this host, and delays data from `target`."""

    def __init__(self, port: int, target: int) -> None:
        self.held_s = 0.0
        self.damages = 0  # number of large pieces from `target` in which a bit is flipped
        self._target = target
        self._server = socket.create_server(("127.0.0.1", port))
        self._open = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def passes(self, data: bytes, from_target: bool) -> bytes:
        """The bytes to forward. Called in one thread per direction."""
        return data

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                for source, sink, slow in ((near, far, False), (far, near, True)):
                    threading.Thread(
                        target=self._pass, args=(source, sink, slow), daemon=True
                    ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                data = bytearray(self.passes(bytes(data), from_target=slow))
                if slow:
                    time.sleep(self.held_s)
                    if self.damages and len(data) >= _LARGE_BYTES:
                        self.damages -= 1
                        data[len(data) // 2] ^= 1
                sink.sendall(data)


Wire = TypeVar("Wire", bound=SlowWire)


@contextlib.contextmanager
def worker_by_wire(
    make: Callable[[int, int], Wire],
    folder: Path,
    env: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[tuple[TensorFlowCluster, Wire]]:
    """A ps and a worker (`env` by job), and the wire over which the worker reaches the ps."""
    lease = PortLease()
    with TensorFlowCluster("grpc++", {"ps": 1, "worker": 1}) as cluster:
        ps, worker = cluster.spec["ps"][0], cluster.spec["worker"][0]
        data, by_wire, own = lease.take(), lease.take(), lease.take()
        wire = make(by_wire, data)
        try:
            for job, port in (("ps", data), ("worker", by_wire)):
                at = folder / job
                at.mkdir()
                lines = f"{ps}=127.0.0.1:{port}\n{worker}=127.0.0.1:{own}\n"
                (at / ".endpoint_map").write_text(lines)
                cluster.begin(
                    job, 0, {"TENSORWIRE_TRANSPORT": "tcp", **(env or {}).get(job, {})}, at
                )
            cluster.ready(*cluster.tasks.values())
            yield cluster, wire
        finally:
            wire.close()
            lease.release()
