"""The ps and the clients of `bench serve`.

The measured code is C++ (native/tensorflow/bench); Python only starts it.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tensorwire.bench.experiments.server_task import PluginTask
from tensorwire.bench.frame.hosted_task import request
from tensorwire.bench.lab.channel import Message
from tensorwire.errors import TensorwireError, UsageError

PAYLOADS = ("uniform", "random", "skewed")
MOST_BYTES = 1 << 30

_SKEWED_PARTS = np.array([0.1, 1.0, 6.4])
_SKEWED_SHARES = (0.6, 0.3, 0.1)

Sizes: TypeAlias = npt.NDArray[np.int64]


def check_message_size(message_size: int) -> None:
    """Raises UsageError for a size outside the limits."""
    if not 1 <= message_size <= MOST_BYTES:
        raise UsageError(f"--message-size {message_size}: give bytes from 1 to {MOST_BYTES}")


def payload_sizes(payload: str, message_size: int, count: int, seed: int) -> Sizes:
    """Bytes of each of `count` tensors, int64 [count]; deterministic in the arguments.

    Args:
        payload: "uniform": each has `message_size` bytes; "random": from 1 to 2 * `message_size` -
            1 bytes, all equally likely; "skewed": six of ten have a tenth of `message_size`, three
            have `message_size`, and one has 6.4 times `message_size`.
    """
    random = np.random.default_rng(seed)
    if payload == "uniform":
        return np.full(count, message_size, dtype=np.int64)
    if payload == "random":
        return random.integers(1, 2 * message_size, size=count, dtype=np.int64)
    if payload == "skewed":
        sizes = np.maximum(1, np.rint(_SKEWED_PARTS * message_size)).astype(np.int64)
        return random.choice(sizes, p=_SKEWED_SHARES, size=count)
    raise ValueError(f"unknown payload: {payload}")


class _Asked(ctypes.Structure):
    """The structure tensorwire_bench_asked of serve.h."""

    _fields_ = (("seconds", ctypes.c_double), ("bytes", ctypes.c_int64))


class _Library:
    """native/tensorflow/bench/serve.h; a function's error becomes a TensorwireError."""

    def __init__(self) -> None:
        from tensorwire.plugin import build, loader

        path = build.ensure_built(source=build.bench_source(loader.load()))
        self._library = ctypes.CDLL(str(path))

    def call(self, name: str, *arguments: Any) -> None:
        function = self._library[f"tensorwire_bench_{name}"]
        function.restype = ctypes.c_char_p
        error = function(*arguments)
        if error is not None:
            raise TensorwireError(error.decode(errors="replace"))


class _ServeTask(PluginTask):
    def __init__(self, descriptors: int) -> None:
        _allow_descriptors(descriptors)
        super().__init__(needs_plugin=False)
        self._library = _Library()


class PsTask(_ServeTask):
    """A server with the tensors that its clients will request."""

    def __init__(self, protocol: str, descriptors: int, spec: Mapping[str, Sequence[str]]) -> None:
        super().__init__(descriptors)
        from tensorflow.core.protobuf import tensorflow_server_pb2

        server_def = tensorflow_server_pb2.ServerDef(job_name="ps", task_index=0, protocol=protocol)
        for name, addresses in spec.items():
            job = server_def.cluster.job.add(name=name)
            for index, address in enumerate(addresses):
                job.tasks[index] = address
        data = server_def.SerializeToString()
        self._incarnation = ctypes.c_uint64()
        self._library.call(
            "start_ps", data, ctypes.c_uint64(len(data)), ctypes.byref(self._incarnation)
        )

    @request
    def incarnation(self) -> Message:
        """The incarnation of the server's device, which is part of every rendezvous key."""
        return {"incarnation": self._incarnation.value}

    @request
    def fill(self, step: int, payload: str, message_size: int, count: int) -> Message:
        """Makes the tensors of a step; their sizes depend only on the arguments."""
        sizes = payload_sizes(payload, message_size, count, seed=step)
        pointer = sizes.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
        self._library.call("fill", ctypes.c_int64(step), pointer, ctypes.c_int64(count))
        return {"bytes": int(sizes.sum())}


class ClientsTask(_ServeTask):
    """Clients that send the next request as soon as one is answered."""

    def __init__(self, protocol: str, descriptors: int) -> None:
        super().__init__(descriptors)
        self._protocol = protocol
        self._clients = 0

    @request
    def connect(self, address: str, clients: int, incarnation: int) -> Message:
        """Makes the clients; each connects with its first request."""
        self._clients = clients
        self._library.call(
            "connect",
            self._protocol.encode(),
            address.encode(),
            clients,
            ctypes.c_uint64(incarnation),
        )
        return {}

    @request
    def ask(self, step: int, count: int, busy: int, in_flight: int, timeout_s: float) -> Message:
        """Requests `count` tensors, by the first `busy` clients.

        Returns the seconds, the bytes, the latency of each request, and the requests of each
        client.
        """
        asked = _Asked()
        latency_us = np.empty(count, dtype=np.float32)
        answers = np.empty(self._clients, dtype=np.int64)
        self._library.call(
            "ask",
            ctypes.c_int64(step),
            ctypes.c_int64(count),
            busy,
            in_flight,
            ctypes.c_double(timeout_s),
            ctypes.byref(asked),
            latency_us.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            answers.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
        )
        return {
            "seconds": asked.seconds,
            "bytes": asked.bytes,
            "latency_us": np.rint(latency_us).astype(int).tolist(),
            "answers": answers.tolist(),
        }


def _allow_descriptors(count: int) -> None:
    """Raises this process's soft limit to `count`; its starter has checked the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
