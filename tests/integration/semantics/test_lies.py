"""A ps whose tensors do not fit the graph: the step fails and says so."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from .frames import HEADER, frames_of
from .record_session import PS, WORKER
from .slow_wire import SlowWire, worker_by_wire
from .support import TensorFlowCluster

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(180, method="thread", func_only=True),
    pytest.mark.usefixtures("plugin"),
]

REPLY, PUSH = 4, 10
TENSOR = struct.Struct("<BBHI")  # flags, rank, type, time; see tensors/tensor_codec.h
STEP_BYTES = 8  # before the tensor, in a push
FLOATS, NAMES = 1000, 3
TYPES = (tf.int32, tf.float32, tf.string, tf.variant)
INT32, FLOAT, STRING, VARIANT = (each.as_datatype_enum for each in TYPES)
Lie = Callable[[bytes, bytes], tuple[bytes, bytes]]


class LyingWire(SlowWire):
    """Changes the description of tensors while `lie` is set."""

    def __init__(self, port: int, target: int) -> None:
        self.lie: Lie | None = None
        self._rest = b""
        super().__init__(port, target)

    def passes(self, data: bytes, from_target: bool) -> bytes:
        if not from_target:
            return data
        frames, self._rest = frames_of(self._rest + data)
        return b"".join(self._told(frame) for frame in frames)

    def _told(self, frame: bytes) -> bytes:
        fields = HEADER.unpack_from(frame)
        kind, body = fields[2], HEADER.size + fields[5]
        before = HEADER.size + (STEP_BYTES if kind == PUSH else 0)
        metadata, payload = frame[before:body], frame[body:]
        if self.lie is None or kind not in (REPLY, PUSH) or len(metadata) < TENSOR.size:
            return frame
        step = frame[HEADER.size : before]
        metadata, payload = self.lie(metadata, payload)
        fields = (*fields[:5], len(step + metadata), *fields[6:8], len(payload))
        return HEADER.pack(*fields) + step + metadata + payload


def tensor_said(dtype: int, *shape: int) -> Lie:
    def lie(metadata: bytes, payload: bytes) -> tuple[bytes, bytes]:
        flags, _, _, time = TENSOR.unpack_from(metadata)
        said = TENSOR.pack(flags, len(shape), dtype, time)
        return said + struct.pack(f"<{len(shape)}q", *shape), payload

    return lie


def contents_said(payload: bytes, dtype: int, *shape: int) -> Lie:
    def lie(metadata: bytes, _: bytes) -> tuple[bytes, bytes]:
        return tensor_said(dtype, *shape)(metadata, payload)

    return lie


def proto_said(*shape: int) -> Lie:
    proto = tensor_pb2.TensorProto(dtype=VARIANT)
    proto.variant_val.add()
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return contents_said(proto.SerializeToString(), VARIANT, *shape)


LIES: dict[str, tuple[str, Lie, str]] = {
    "another-type": ("floats", tensor_said(INT32, FLOATS), "type int32 does not match.* float"),
    "strings-as-memory": ("floats", tensor_said(STRING, FLOATS), "cannot travel as memory"),
    "a-larger-shape": ("floats", tensor_said(FLOAT, FLOATS + 1), "not of its shape's size"),
    "a-smaller-shape": ("floats", tensor_said(FLOAT, FLOATS - 1), "not of its shape's size"),
    "a-huge-shape": ("floats", tensor_said(FLOAT, 2**40, 2**20), "not of its shape's size"),
    "an-endless-shape": ("floats", tensor_said(FLOAT, 2**62, 2**62), "malformed metadata"),
    "a-negative-shape": ("floats", tensor_said(FLOAT, -1), "malformed metadata"),
    "an-unknown-type": ("floats", tensor_said(77, FLOATS), "malformed metadata"),
    "no-strings": ("names", contents_said(b"\xff" * 50, STRING, NAMES), "of the announced number"),
    "strings-without-end": (
        "names",
        contents_said(b"\1\1s", STRING, 2**26),
        "of the announced number",
    ),
    "other-strings": ("names", tensor_said(STRING, 2), "of the announced number"),
    "no-protobuf": ("names", contents_said(b"\xff" * 50, VARIANT, NAMES), "cannot be parsed"),
    "variants-without-end": ("names", proto_said(2**26), "fewer elements than announced"),
}


@pytest.fixture(scope="module")
def liar(
    plugin: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TensorFlowCluster, LyingWire]]:
    with worker_by_wire(LyingWire, tmp_path_factory.mktemp("liar")) as pair:
        yield pair


@pytest.mark.parametrize("what", LIES)
def test_a_tensor_that_is_not_what_the_graph_says_fails_its_step_and_no_other(
    liar: tuple[TensorFlowCluster, LyingWire], what: str
) -> None:
    cluster, wire = liar
    name, lie, words = LIES[what]
    worker = psutil.Process(cluster.tasks["worker:0"].pid)
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            made = {
                "floats": tf.random.uniform([FLOATS], name="floats"),
                "names": tf.strings.as_string(tf.random.uniform([NAMES]), name="names"),
            }[name]
        with tf.device(WORKER):
            same = tf.reshape(made, [FLOATS if name == "floats" else NAMES])
        with cluster.session(graph) as session:
            # The first step requests the tensor; from the second on it is pushed.
            for whole_steps in (0, 4):
                for _ in range(whole_steps):
                    session.run(same)
                before = worker.memory_info().rss
                wire.lie = lie
                with pytest.raises(tf.errors.OpError, match=words):
                    session.run(same)
                wire.lie = None
                assert worker.memory_info().rss - before < 500 << 20
            assert np.all(np.shape(session.run(same)) == same.shape)
    assert [task.poll() for task in cluster.tasks.values()] == [None, None]
