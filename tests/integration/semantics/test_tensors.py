"""Every kind of tensor that TensorFlow can send between tasks arrives unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .support import TensorFlowCluster, outcome, tf1

pytestmark = [pytest.mark.core, pytest.mark.timeout(120, method="thread", func_only=True)]

NUMERIC = [
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.complex64,
    tf.complex128,
    tf.bool,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
    tf.uint32,
    tf.uint64,
]
QUANTIZED = [tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32]


def relay(cluster: TensorFlowCluster, value: Any, dtype: tf.DType) -> Any:
    """Feeds a value to the ps, which sends it to worker:1, which sends it to worker:0."""

    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            tensor = tf.identity(tf1.placeholder(dtype, name="value"))
        for task in (1, 0):
            with tf.device(f"/job:worker/task:{task}"):
                tensor = tf.identity(tensor)
        return tensor

    return cluster.run(build, {"value": value})


def sample(dtype: tf.DType, shape: tuple[int, ...]) -> Any:
    """Values that are distinct if the type has enough values, including the type's extremes."""
    count = int(np.prod(shape))
    numbers = np.arange(count) % 251
    if dtype.is_complex:
        values = (numbers + 1j * (numbers + 0.5)).astype(dtype.as_numpy_dtype)
    elif dtype == tf.bool:
        values = numbers % 3 == 0
    else:
        values = (numbers % 127).astype(dtype.as_numpy_dtype)
        if count > 1 and not dtype.is_bool:
            values[:2] = dtype.min, dtype.max
    return values.reshape(shape)


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda dtype: dtype.name)
def test_each_number_type_keeps_its_bits(cluster: TensorFlowCluster, dtype: tf.DType) -> None:
    value = sample(dtype, (7, 11))
    result = relay(cluster, value, dtype)
    assert result.dtype == value.dtype
    assert result.tobytes() == value.tobytes()


@pytest.mark.parametrize("dtype", QUANTIZED, ids=lambda dtype: dtype.name)
def test_each_quantized_type_keeps_its_bits(cluster: TensorFlowCluster, dtype: tf.DType) -> None:
    plain = {1: tf.uint8, 2: tf.uint16, 4: tf.int32}[dtype.size]
    value = sample(plain, (5, 3))

    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            quantized = tf.bitcast(tf1.placeholder(plain, name="value"), dtype)
        with tf.device("/job:worker/task:1"):
            return tf.bitcast(tf.identity(quantized), plain)

    result = cluster.run(build, {"value": value})
    assert result.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "shape",
    [(), (0,), (1,), (3, 0, 2), (1, 1, 1, 1, 1, 1, 1, 1), (1021,), (2, 3, 5, 7), (513, 1025)],
    ids=str,
)
def test_each_shape_arrives(cluster: TensorFlowCluster, shape: tuple[int, ...]) -> None:
    value = sample(tf.float32, shape)
    result = relay(cluster, value, tf.float32)
    assert result.shape == shape
    np.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("count", [1, 2, 3, 31, 32, 33, 4095, 4097, 65535, 1048577, 9999991])
def test_bytes_of_any_count_arrive(cluster: TensorFlowCluster, count: int) -> None:
    value = (np.arange(count) % 251).astype(np.uint8)
    np.testing.assert_array_equal(relay(cluster, value, tf.uint8), value)


def test_nan_infinity_and_negative_zero_keep_their_bits(cluster: TensorFlowCluster) -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000], np.uint32)
    value = bits.view(np.float32)
    assert relay(cluster, value, tf.float32).view(np.uint32).tolist() == bits.tolist()


@pytest.mark.parametrize(
    "value",
    [
        np.array(b"", object),
        np.array([], object),
        np.array([[], []], object),
        np.array([b"", b"a", b"\x00\xff\x00", "Zoë".encode(), b"x" * 1000], object),
        np.array([[b"a", b"bc"], [b"", b"\x00"], [b"\xff" * 300, b"end"]], object),
        np.array([b"y" * 5_000_000, b"", b"z" * 1_000_001], object),
        np.array([str(i).encode() for i in range(20_000)], object),
    ],
    ids=["empty", "none", "none-2d", "binary", "2d", "large", "many"],
)
def test_strings_arrive(cluster: TensorFlowCluster, value: Any) -> None:
    result = relay(cluster, value, tf.string)
    # A scalar string is returned as bytes.
    result = np.asarray(result, object)
    assert result.shape == value.shape
    assert result.tolist() == value.tolist()


def test_a_tensor_of_unknown_shape_changes_its_shape_from_step_to_step(
    cluster: TensorFlowCluster,
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            value = tf1.placeholder(tf.int32, shape=None)
            sent = tf.identity(value)
        with tf.device("/job:worker/task:1"):
            received = [tf.identity(sent), tf.shape(sent), tf.rank(sent)]
        with cluster.session(graph) as session:
            for shape in [(), (2,), (0, 4), (3, 1, 2), (100, 100), (1,)]:
                array = sample(tf.int32, shape)
                result, result_shape, rank = session.run(received, {value: array})
                np.testing.assert_array_equal(result, array)
                assert (tuple(result_shape), rank) == (shape, len(shape))


@pytest.mark.every_version
def test_hundreds_of_tensors_of_mixed_kinds_cross_in_one_step(cluster: TensorFlowCluster) -> None:
    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            start = tf1.placeholder(tf.int32, [], name="start")
            numbers = [start + i for i in range(150)]
            words = [tf.strings.as_string(start * i) for i in range(50)]
            blocks = [tf.fill([i, 100], tf.cast(start, tf.float32) + i) for i in range(100)]
        with tf.device("/job:worker/task:1"):
            return [
                [tf.identity(n) for n in numbers],
                [tf.identity(w) for w in words],
                [tf.reduce_sum(b) for b in blocks],
            ]

    numbers, words, sums = cluster.run(build, {"start": 7})
    assert numbers == [7 + i for i in range(150)]
    assert words == [str(7 * i).encode() for i in range(50)]
    assert sums == [100 * i * (7 + i) for i in range(100)]


def test_one_tensor_goes_to_several_consumers_and_devices(cluster: TensorFlowCluster) -> None:
    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            value = tf.range(tf1.placeholder(tf.int64, [], name="limit"))
        sums = []
        for task in (0, 1, 0, 1):
            with tf.device(f"/job:worker/task:{task}"):
                sums.append(tf.reduce_sum(value) + task)
        return sums

    assert cluster.run(build, {"limit": 1000}) == [499500, 499501, 499500, 499501]


def test_a_view_of_a_larger_tensor_sends_only_its_part(cluster: TensorFlowCluster) -> None:
    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            rows = tf.reshape(tf.range(tf1.placeholder(tf.int32, [], name="limit")), [-1, 10])
            part = rows[37:41]
        with tf.device("/job:worker/task:1"):
            return tf.identity(part)

    expected = np.arange(370, 410).reshape(4, 10)
    np.testing.assert_array_equal(cluster.run(build, {"limit": 1000}), expected)


@pytest.mark.parametrize("element", [tf.float32, tf.string, tf.variant], ids=lambda d: d.name)
def test_a_list_of_tensors_crosses_as_on_grpc(
    grpc_cluster: TensorFlowCluster, wire_cluster: TensorFlowCluster, element: tf.DType
) -> None:
    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            count = tf1.placeholder(tf.int32, [], name="count")
            row = tf.fill([count], tf.cast(count, tf.float32))
            if element == tf.string:
                row = tf.strings.as_string(row)
            elements = [row, row]
            if element == tf.variant:
                nested = tf.raw_ops.EmptyTensorList(
                    element_shape=[-1], max_num_elements=-1, element_dtype=tf.float32
                )
                elements = [nested, nested]
            handle = tf.raw_ops.EmptyTensorList(
                element_shape=-1, max_num_elements=-1, element_dtype=element
            )
            for item in elements:
                handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=item)
        with tf.device("/job:worker/task:1"):
            moved = tf.identity(handle)
            results = [tf.raw_ops.TensorListLength(input_handle=moved)]
            if element != tf.variant:
                results.append(
                    tf.raw_ops.TensorListStack(
                        input_handle=moved, element_shape=[-1], element_dtype=element
                    )
                )
            return results

    def crossed(cluster: TensorFlowCluster) -> Any:
        kind, value = outcome(lambda: cluster.run(build, {"count": 3}))
        return kind, [v.tolist() for v in value] if kind == "value" else value

    expected = crossed(grpc_cluster)
    assert expected[0] == "value"
    assert crossed(wire_cluster) == expected


def test_an_optional_crosses(cluster: TensorFlowCluster) -> None:
    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            value = tf1.placeholder(tf.float32, [], name="value")
            optional = tf.raw_ops.OptionalFromValue(components=[value])
        with tf.device("/job:worker/task:1"):
            moved = tf.identity(optional)
            (inside,) = tf.raw_ops.OptionalGetValue(
                optional=moved, output_types=[tf.float32], output_shapes=[[]]
            )
            return tf.raw_ops.OptionalHasValue(optional=moved), inside

    assert cluster.run(build, {"value": 4.5}) == (True, 4.5)


def test_a_dataset_which_cannot_cross_is_an_error(cluster: TensorFlowCluster) -> None:
    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            dataset = tf1.data.Dataset.range(10)._variant_tensor
        with tf.device("/job:worker/task:1"):
            return tf.raw_ops.DatasetCardinality(input_dataset=tf.identity(dataset))

    # gRPC reports that it could not parse the reply; grpc++ names the variant without a decoder.
    with pytest.raises((tf.errors.InternalError, tf.errors.InvalidArgumentError)):
        cluster.run(build)
    assert relay(cluster, [1.0], tf.float32).tolist() == [1.0]


def test_a_handle_made_on_another_task_crosses(cluster: TensorFlowCluster) -> None:
    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="crossing")
            assign = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant([1.0, 2.0]))
        with tf.device("/job:worker/task:1"):
            moved = tf.raw_ops.Identity(input=handle)
        with tf.control_dependencies([assign]), tf.device("/job:ps/task:0"):
            return tf.raw_ops.ReadVariableOp(
                resource=tf.raw_ops.Identity(input=moved), dtype=tf.float32
            )

    assert cluster.run(build).tolist() == [1.0, 2.0]


def test_a_v1_reference_variable_is_read_on_another_task(cluster: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            variable = tf1.Variable([1, 2, 3], use_resource=False)
        with tf.device("/job:worker/task:1"):
            doubled = variable * 2
            add = tf1.assign_add(variable, doubled)
        with cluster.session(graph) as session:
            session.run(variable.initializer)
            session.run(add)
            assert session.run(doubled).tolist() == [6, 12, 18]
