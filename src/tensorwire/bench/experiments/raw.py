"""Raw RPC and raw TCP without TensorFlow; the code in native/raw measures.

Python only starts the measurements. Loops, clocks and request buffers are in C++, which runs
without the GIL.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import time
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorwire import __version__
from tensorwire.bench.frame.tasks import HostedTask, TaskProcesses, request
from tensorwire.bench.lab.channel import Message
from tensorwire.cli.options import SERVER
from tensorwire.cluster import split_address
from tensorwire.engine import Library, data_port, native_folder
from tensorwire.errors import TensorwireError
from tensorwire.plugin import cache, compiler
from tensorwire.settings import address_text

Buffer = NDArray[np.uint8]
CONNECT_TIMEOUT_S = 30.0
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


def _raw_library() -> Path:
    """The library of raw RPC over the engine and of raw TCP."""
    return native_folder() / "lib" / "libtensorwire_raw.so"


@dataclass(frozen=True)
class Load:
    """What a client of raw RPC sends in one measurement. Sizes in bytes."""

    requests: int
    concurrency: int
    request_size: int
    response_size: int
    timeout_s: float


class NativeRpc:
    """One end of a raw RPC in C++ (native/raw/rpc.h). A process makes one: a server or a client."""

    def __init__(self, path: Path) -> None:
        self._library = Library(path)

    @property
    def implementation(self) -> str:
        """The implementation's name in records, such as "engine" or "grpc C++ 1.51.1"."""
        return self._library.words("rpc_implementation") or ""

    def serve(self, host: str, port: int, threads: int, response_size: int) -> int:
        """Serves until the process ends; returns the port, which is a free one if `port` is 0."""
        bound = ctypes.c_int()
        listen = (host, port, threads, response_size)
        self._library.call("rpc_serve", *listen, ctypes.byref(bound))
        return bound.value

    def connect(self, address: str, channels: int, threads: int, timeout_s: float) -> None:
        """Makes the channels, and returns when all are connected."""
        self._library.call("rpc_connect", address, channels, threads, timeout_s)

    def ask(self, load: Load) -> tuple[float, NDArray[np.float32]]:
        """Seconds from the first request to the last answer, and microseconds of each request."""
        seconds, latency_us = ctypes.c_double(), np.empty(load.requests, dtype=np.float32)
        found = (ctypes.byref(seconds), latency_us)
        self._library.call("rpc_ask", *dataclasses.astuple(load), *found)
        return seconds.value, latency_us


class GrpcioRpc:
    """The same over grpcio (gRPC for Python), if gRPC in C++ is not installed; messages are bytes.

    Raises ImportError if grpcio is not installed either.
    """

    def __init__(self) -> None:
        import grpc

        self._grpc = grpc
        self.implementation = f"grpcio {grpc.__version__}"
        self._server: Any = None
        self._stubs: list[Any] = []

    def serve(self, host: str, port: int, threads: int, response_size: int) -> int:
        response = b"a" * response_size
        handler = self._grpc.unary_unary_rpc_method_handler(lambda request, context: response)
        pool = futures.ThreadPoolExecutor(threads)
        self._server = self._grpc.server(pool, options=_SERVER_OPTIONS)
        service = self._grpc.method_handlers_generic_handler(_SERVICE, {"Send": handler})
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
            channel = self._grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
            try:
                self._grpc.channel_ready_future(channel).result(timeout_s)
            except self._grpc.FutureTimeoutError:
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
        except self._grpc.RpcError as error:
            raise TensorwireError(f"grpc: {error.details()}") from error
        return seconds, (took_s * 1e6).astype(np.float32)


class RawTcp:
    """Raw TCP streams; native/raw/tcp.h."""

    def __init__(self) -> None:
        self._library = Library(_raw_library())

    def receive(self, descriptor: int, buffer: Buffer) -> None:
        """Receives blocks, one buffer at a time, until the sender ends the stream."""
        self._library.call("tcp_receive", descriptor, buffer, buffer.size)

    def send(self, descriptors: Sequence[int], buffers: Sequence[Buffer], messages: int) -> float:
        """Sends each buffer `messages` times over its stream, all in parallel; returns seconds."""
        streams, seconds = len(descriptors), ctypes.c_double()
        sockets = (ctypes.c_int * streams)(*descriptors)
        data = (ctypes.c_void_p * streams)(*(each.ctypes.data for each in buffers[:streams]))
        sizes = (streams, buffers[0].size, messages)
        self._library.call("tcp_send", sockets, data, *sizes, ctypes.byref(seconds))
        return seconds.value


def rpc_end(protocol: str) -> NativeRpc | GrpcioRpc:
    """The implementation of `protocol`: "grpc", "grpc++", or the path of a library with rpc.h.

    "grpc" is gRPC in C++ if its development files are installed (compiled at first use), or else
    grpcio. rpc.h is in native/raw.

    Raises:
        TensorwireError: no gRPC is installed; the message says what to install.
    """
    if protocol == "grpc++":
        return NativeRpc(_raw_library())
    if protocol != "grpc":
        return NativeRpc(Path(protocol))
    installed = compiler.package_flags("grpc++")
    if installed is not None:
        try:
            return NativeRpc(cache.ensure_built(rpc_recipe("grpc C++", installed)))
        except compiler.NoCompilerError:
            pass
    try:
        return GrpcioRpc()
    except ImportError:
        raise TensorwireError(
            "no gRPC to measure: apt-get install g++ libgrpc++-dev (gRPC in C++), or "
            "pip install 'tensorwire[grpcio]' (in Python), or use --protocols grpc++"
        ) from None


def rpc_recipe(
    what: str, package: compiler.PackageFlags, source: Path | None = None
) -> cache.Recipe:
    """The build of raw RPC over an installed library.

    `source` (default: grpc_rpc.cc) implements the two ends of load.h.
    """
    folder = native_folder() / "raw"
    units = (folder / "load.cc", source or folder / "grpc_rpc.cc")
    name = f"{units[1].stem}.so"
    flags = ("-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")
    inputs = (*units, *sorted(folder.glob("*.h")))
    key = cache.digest(
        __version__, *flags, *package.flags, package.version, *(f.read_bytes() for f in inputs)
    )
    options = (*flags, "-shared", f"-I{folder}", *map(str, units), *package.flags)
    return cache.Recipe(
        name=name,
        what=f"raw RPC over {what}",
        against=f"{package.name} {package.version}",
        key=f"raw-{package.name}-{package.version}-{key}",
        command=lambda cxx: [*cxx.command, *options, "-o", name],
        units={},
        typical_s=10,
    )


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
        self._end.connect(address, channels, threads, CONNECT_TIMEOUT_S)
        return {}

    @request
    def run(self, load: Load) -> Message:
        cpu_s = time.process_time()
        seconds, latency_us = self._end.ask(load)
        return {
            "seconds": seconds,
            "latency_us": np.rint(latency_us).astype(int).tolist(),
            "cpu_s": time.process_time() - cpu_s,
        }


def connect_ends(
    ends: TaskProcesses,
    protocol: str,
    clients: Sequence[str],
    *,
    threads: int,
    response_size: int,
    channels: int,
) -> None:
    """Makes the server listen, at its data port unless it speaks grpc, and the clients connect."""
    host, port = split_address(ends.address(SERVER))
    port = port if protocol == "grpc" else data_port(port)
    listens_at = host if ends.cluster.is_on_this_machine else ""
    serving = {"threads": threads, "response_size": response_size}
    ends.ask(SERVER, "serve", host=listens_at, port=port, **serving)
    for client in clients:
        ends.ask(client, "connect", address=address_text(host, port), channels=channels)
