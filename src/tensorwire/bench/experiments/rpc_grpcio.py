"""Raw RPC over grpcio (gRPC for Python), if gRPC in C++ is not installed. Messages are bytes."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from tensorwire.errors import TensorwireError

_SERVICE = "tensorwire.Raw"
_METHOD = f"/{_SERVICE}/Send"
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
# Each channel has its own connection, and never uses a proxy.
_CHANNEL_OPTIONS = (
    *_UNLIMITED,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
# Without this, two servers on one port would share its connections.
_SERVER_OPTIONS = (*_UNLIMITED, ("grpc.so_reuseport", 0))


class GrpcioRpc:
    """An RpcEnd in Python."""

    implementation = f"grpcio {grpc.__version__}"

    def __init__(self) -> None:
        self._server: Any = None
        self._stubs: list[Any] = []

    def serve(self, host: str, port: int, threads: int, response_size: int) -> int:
        response = b"a" * response_size
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: response)
        pool = futures.ThreadPoolExecutor(threads)
        self._server = grpc.server(pool, options=_SERVER_OPTIONS)
        service = grpc.method_handlers_generic_handler(_SERVICE, {"Send": handler})
        self._server.add_generic_rpc_handlers((service,))
        address = f"{host or '[::]'}:{port}"
        try:
            bound = int(self._server.add_insecure_port(address))
        except RuntimeError:
            bound = 0
        if not bound:
            raise TensorwireError(f"grpc cannot listen on {address}")
        self._server.start()
        return bound

    def connect(self, address: str, channels: int, threads: int, timeout_s: float) -> None:
        for _ in range(channels):
            channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
            try:
                grpc.channel_ready_future(channel).result(timeout_s)
            except grpc.FutureTimeoutError:
                raise TensorwireError(f"grpc cannot connect to {address}") from None
            self._stubs.append(channel.unary_unary(_METHOD))

    def ask(
        self,
        requests: int,
        concurrency: int,
        request_size: int,
        response_size: int,
        timeout_s: float,
    ) -> tuple[float, NDArray[np.float32]]:
        load = _Load(requests, b"r" * request_size, response_size)
        for index in range(concurrency):
            load.ask(self._stubs[index % len(self._stubs)])
        return load.wait(timeout_s)


class _Load:
    """The load loop of native/raw/load.h for grpcio: each answer triggers the next request."""

    def __init__(self, requests: int, payload: bytes, response_size: int) -> None:
        self._payload = payload
        self._response_size = response_size
        self._began = np.zeros(requests)
        self._took_s = np.zeros(requests)
        self._lock = threading.Lock()
        self._begun = 0
        self._ended = 0
        self._last = 0.0
        self._error = ""
        self._finished = threading.Event()

    def ask(self, stub: Any) -> None:
        with self._lock:
            number = self._begun
            self._begun += 1
        if number >= len(self._began):
            return
        self._began[number] = time.perf_counter()
        future = stub.future(self._payload)
        future.add_done_callback(lambda done: self._end(number, done, stub))

    def _end(self, number: int, done: Any, stub: Any) -> None:
        now = time.perf_counter()
        self._took_s[number] = now - self._began[number]
        failed = done.exception()
        if failed is not None:
            self._error = self._error or f"grpc: {failed.details()}"
        elif len(done.result()) != self._response_size:
            self._error = self._error or "a response of another size"
        with self._lock:
            self._ended += 1
            finished = self._ended == len(self._began)
        if finished:
            self._last = now
            self._finished.set()
        else:
            self.ask(stub)

    def wait(self, timeout_s: float) -> tuple[float, NDArray[np.float32]]:
        finished = self._finished.wait(timeout_s)
        if self._error:
            raise TensorwireError(self._error)
        if not finished:
            raise TensorwireError(
                f"only {self._ended} of {len(self._began)} requests were answered in time"
            )
        return self._last - self._began[0], (self._took_s * 1e6).astype(np.float32)
