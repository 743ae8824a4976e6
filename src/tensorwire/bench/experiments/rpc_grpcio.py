"""Raw RPC over grpcio (gRPC for Python), if gRPC in C++ is not installed. Messages are bytes."""

from __future__ import annotations

import itertools
import time
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from tensorwire.bench.experiments.raw import Load
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
    """The same as `raw.NativeRpc`, in Python."""

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

    def ask(self, load: Load) -> tuple[float, NDArray[np.float32]]:
        """The closed loop of native/raw/load.h: a thread for each request in flight."""
        payload = b"r" * load.request_size
        took_s = np.zeros(load.requests)
        numbers = iter(range(load.requests))
        began = time.perf_counter()
        deadline = began + load.timeout_s

        def in_turn(stub: Any) -> None:
            for number in numbers:  # `next` of a range is atomic
                start = time.perf_counter()
                answer = stub(payload, timeout=max(0.0, deadline - start))
                took_s[number] = time.perf_counter() - start
                if len(answer) != load.response_size:
                    raise TensorwireError("a response of another size")

        with futures.ThreadPoolExecutor(load.concurrency) as pool:
            stubs = itertools.islice(itertools.cycle(self._stubs), load.concurrency)
            loops = [pool.submit(in_turn, stub) for stub in stubs]
        seconds = time.perf_counter() - began
        try:
            for loop in loops:
                loop.result()
        except grpc.RpcError as error:
            raise TensorwireError(f"grpc: {error.details()}") from error
        return seconds, (took_s * 1e6).astype(np.float32)
