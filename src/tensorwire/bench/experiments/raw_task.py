"""The tasks of measurements without TensorFlow: raw RPC, and raw TCP streams.

Every page of a buffer is written before use, so steps have no page faults. Sockets keep the
kernel's default buffer sizes.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import time

import numpy as np

from tensorwire.bench.experiments.raw import Buffer, RawTcp, rpc_end
from tensorwire.bench.frame.hosted_task import HostedTask, request, used_cpu_s
from tensorwire.bench.lab.channel import Message
from tensorwire.cluster import data_port
from tensorwire.errors import TensorwireError

_CONNECT_TIMEOUT_S = 30.0


class RpcTask(HostedTask):
    """A server or a client."""

    def __init__(self, protocol: str) -> None:
        self._end = rpc_end(protocol)

    def ready(self) -> Message:
        return {"implementation": self._end.implementation}

    @request
    def serve(self, host: str, port: int, threads: int, response_size: int) -> Message:
        return {"port": self._end.serve(host, port, threads, response_size)}

    @request
    def connect(self, address: str, channels: int) -> Message:
        # At most one thread per channel and per core.
        threads = min(channels, len(os.sched_getaffinity(0)))
        self._end.connect(address, channels, threads, _CONNECT_TIMEOUT_S)
        return {}

    @request
    def ask(
        self,
        requests: int,
        concurrency: int,
        request_size: int,
        response_size: int,
        timeout_s: float,
    ) -> Message:
        cpu_s = used_cpu_s()
        seconds, latency_us = self._end.ask(
            requests, concurrency, request_size, response_size, timeout_s
        )
        return {
            "seconds": seconds,
            "latency_us": np.rint(latency_us).astype(int).tolist(),
            "cpu_s": used_cpu_s() - cpu_s,
        }

    @request
    def cpu(self) -> Message:
        return {"cpu_s": used_cpu_s()}


class TcpTask(HostedTask):
    """A sender or a receiver."""

    def __init__(self, message_size: int) -> None:
        self._message_size = message_size
        self._tcp = RawTcp()
        self._streams: list[socket.socket] = []
        self._buffers: list[Buffer] = []

    @request
    def receive(self, host: str, port: int) -> Message:
        """Listens on a port and returns it. Every stream that connects is received to its end."""
        family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
        dual = not host and socket.has_dualstack_ipv6()
        if not host and not dual:
            family = socket.AF_INET
        try:
            server = socket.create_server((host, port), family=family, dualstack_ipv6=dual)
        except OSError as error:
            raise TensorwireError(f"cannot listen on port {port}: {error.strerror}") from error
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return {"port": server.getsockname()[1]}

    def _accept(self, server: socket.socket) -> None:
        with server:
            while True:
                stream, _ = server.accept()
                threading.Thread(target=self._receive, args=(stream,), daemon=True).start()

    def _receive(self, stream: socket.socket) -> None:
        with stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._tcp.receive(stream.fileno(), self._buffer(1))

    def _buffer(self, value: int) -> Buffer:
        return np.full(self._message_size, value, dtype=np.uint8)

    @request
    def connect(self, host: str, port: int, streams: int) -> Message:
        for _ in range(streams):
            try:
                stream = socket.create_connection((host, port), _CONNECT_TIMEOUT_S)
            except OSError as error:
                raise TensorwireError(
                    f"cannot connect to {host}:{port}: {error.strerror or error}"
                ) from error
            stream.settimeout(None)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams.append(stream)
            self._buffers.append(self._buffer(2))
        return {}

    @request
    def tcp(self, iters: int, streams: int = 1, messages: int = 1) -> Message:
        """Sends blocks of `messages` on `streams` streams; the receiver acknowledges each full
        block.
        """
        descriptors = [stream.fileno() for stream in self._streams[:streams]]
        return {
            "step_s": [self._tcp.send(descriptors, self._buffers, messages) for _ in range(iters)]
        }


class MemcpyTask(HostedTask):
    """A task that copies one buffer to another."""

    def __init__(self, message_size: int) -> None:
        self._copied = np.full(message_size, 2, dtype=np.uint8)
        self._copy = np.full(message_size, 3, dtype=np.uint8)

    @request
    def memcpy(self, iters: int) -> Message:
        times = []
        gc.disable()
        try:
            for _ in range(iters):
                begin = time.perf_counter()
                np.copyto(self._copy, self._copied)
                times.append(time.perf_counter() - begin)
        finally:
            gc.enable()
        return {"step_s": times}


def port_of(protocol: str, port: int) -> int:
    """The port of a protocol for one address: grpc++ and iperf3 use the data port."""
    return port if protocol in ("grpc", "tcp") else data_port(port)
