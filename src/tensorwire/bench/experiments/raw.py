"""Raw RPC and raw TCP without TensorFlow; the code in native/raw measures.

Python only starts the measurements. Loops, clocks and request buffers are in C++, which runs
without the GIL.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorwire import __version__
from tensorwire.bench.frame.tasks import HostedTask, request, used_cpu_s
from tensorwire.bench.lab.channel import Message
from tensorwire.cluster import data_port
from tensorwire.engine import native_folder
from tensorwire.errors import TensorwireError
from tensorwire.plugin import cache, compiler
from tensorwire.plugin.digest import digest

if TYPE_CHECKING:
    from tensorwire.bench.experiments.rpc_grpcio import GrpcioRpc

Buffer = NDArray[np.uint8]
CONNECT_TIMEOUT_S = 30.0


class Library:
    """A library whose functions return null or an error text, which becomes a TensorwireError."""

    def __init__(self, path: Path, prefix: str = "tensorwire_") -> None:
        self._prefix = prefix
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise TensorwireError(
                f"cannot load {path}: {error}; install tensorwire again"
            ) from None

    def words(self, name: str, *arguments: Any) -> str | None:
        """Calls a function; an argument is what Python makes of it: text, numbers, arrays."""
        function = self._library[f"{self._prefix}{name}"]
        function.restype = ctypes.c_char_p
        said: bytes | None = function(*map(_for_c, arguments))
        return None if said is None else said.decode(errors="replace")

    def call(self, name: str, *arguments: Any) -> None:
        error = self.words(name, *arguments)
        if error is not None:
            raise TensorwireError(error)


def _for_c(argument: Any) -> Any:
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, int):
        return ctypes.c_int64(argument)  # an int of C takes the lower half of it
    if isinstance(argument, float):
        return ctypes.c_double(argument)
    return argument.ctypes if isinstance(argument, np.ndarray) else argument


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
        from tensorwire.bench.experiments.rpc_grpcio import GrpcioRpc
    except ImportError:
        raise TensorwireError(
            "no gRPC to measure: apt-get install g++ libgrpc++-dev (gRPC in C++), or "
            "pip install 'tensorwire[grpcio]' (in Python), or use --protocols grpc++"
        ) from None
    return GrpcioRpc()


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
    key = digest(
        __version__, *flags, *package.flags, package.version, *(f.read_bytes() for f in inputs)
    )
    options = (*flags, "-shared", f"-I{folder}", *map(str, units), *package.flags)
    return cache.Recipe(
        name=name,
        what=f"raw RPC over {what}",
        against=f"{package.name} {package.version}",
        key=f"raw-{package.name}-{package.version}-{key}",
        commands=lambda cxx: [[*cxx.command, *options, "-o", name]],
        units={},
        typical_s=10,
        facts={"tensorwire": __version__, package.name: package.version},
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
        cpu_s = used_cpu_s()
        seconds, latency_us = self._end.ask(load)
        return {
            "seconds": seconds,
            "latency_us": np.rint(latency_us).astype(int).tolist(),
            "cpu_s": used_cpu_s() - cpu_s,
        }

    @request
    def cpu(self) -> Message:
        return {"cpu_s": used_cpu_s()}


def port_of(protocol: str, port: int) -> int:
    """The port of a protocol for one address: grpc++ and iperf3 use the data port."""
    return port if protocol in ("grpc", "tcp") else data_port(port)
