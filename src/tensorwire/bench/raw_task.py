"""What the machine could do without TensorFlow: `python -m tensorwire.bench.raw_task`.

Two of these are the ends of one TCP stream. A step is as a transfer's is: a buffer of the tensor's
size goes from the sender's memory into the receiver's, and the receiver says that it has all of it.
The sockets' buffers are as the kernel makes them. Every page of the memory was written before, so
no step pays for page faults. Python only makes the calls: each moves as much as the kernel takes at
once, without the interpreter's lock.

The process that started it asks by JSON messages (`lab.channel`):
{"do": "receive", "host", "bytes"} is answered by {"port"} and serves one sender until that leaves;
{"do": "connect", "host", "port", "bytes"}, then {"do": "tcp" | "memcpy", "iters"}, make the sender.
"""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable

import numpy as np

from tensorwire.lab.channel import Message, TaskEnd

_CONNECT_TIMEOUT_S = 30.0


def _buffer(size_bytes: int, value: int) -> memoryview:
    return memoryview(np.full(size_bytes, value, dtype=np.uint8).data)


def receive(end: TaskEnd, host: str, size_bytes: int) -> None:
    """Announces a port, then reads buffers of `size_bytes` and acknowledges each."""
    view = _buffer(size_bytes, 1)
    with socket.create_server((host, 0)) as server:
        server.settimeout(_CONNECT_TIMEOUT_S)
        end.send({"port": server.getsockname()[1]})
        stream, _ = server.accept()
    with stream:
        stream.settimeout(None)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            got = 0
            while got < size_bytes:
                count = stream.recv_into(view[got:], 0, socket.MSG_WAITALL)
                if not count:
                    return
                got += count
            stream.sendall(b"a")


class Sender:
    """The sending end, and a second buffer for memcpy."""

    def __init__(self, host: str, port: int, size_bytes: int) -> None:
        self._source = _buffer(size_bytes, 2)
        self._copy_from = np.frombuffer(self._source, dtype=np.uint8)
        self._copy_to = np.full(size_bytes, 3, dtype=np.uint8)
        self._stream = socket.create_connection((host, port), _CONNECT_TIMEOUT_S)
        self._stream.settimeout(None)
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def tcp(self) -> None:
        """One buffer to the other end, and its acknowledgement back."""
        self._stream.sendall(self._source)
        if not self._stream.recv(1):
            raise ConnectionError("the receiver is gone")

    def memcpy(self) -> None:
        np.copyto(self._copy_to, self._copy_from)


def timed(step: Callable[[], None], iters: int) -> Message:
    times = []
    gc.disable()
    try:
        for _ in range(iters):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
    finally:
        gc.enable()
    return {"step_s": times}


def main() -> None:
    end = TaskEnd()
    sender: Sender | None = None
    while (message := end.receive()) is not None:
        if message["do"] == "receive":
            receive(end, message["host"], message["bytes"])
        elif message["do"] == "connect":
            sender = Sender(message["host"], message["port"], message["bytes"])
            end.send({})
        elif sender is not None:
            step = sender.tcp if message["do"] == "tcp" else sender.memcpy
            end.send(timed(step, message["iters"]))


if __name__ == "__main__":
    main()
