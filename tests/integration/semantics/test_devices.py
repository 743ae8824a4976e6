"""Tensors between tasks with a device, without a GPU: the CPU cannot access its memory."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import load_library

from .devices import (
    PS_CPU,
    PS_DEVICE,
    WORKER_CPU,
    WORKER_DEVICE,
    build_device,
    device_cluster,
    variable,
)
from .fusing import fusing_session, total
from .support import TensorFlowCluster, tf1

pytestmark = pytest.mark.timeout(300, method="thread", func_only=True)

STEPS = 4
# Large enough for shared memory and for several streams.
LARGE = 3_000_000


@pytest.fixture(scope="module")
def device_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not hasattr(load_library, "load_pluggable_device_library"):
        pytest.skip(f"TensorFlow {tf.__version__} loads no pluggable devices")
    return build_device(tmp_path_factory.mktemp("device"))


@pytest.fixture(scope="module", params=["grpc", "tcp", "memory"])
def transport(request: pytest.FixtureRequest) -> str:
    """grpc, or the transport of large tensors on grpc++."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def devices(transport: str, device_library: Path, plugin: None) -> Iterator[TensorFlowCluster]:
    """ps:0 without the device, ps:1 and worker:0 with it."""
    protocol = "grpc" if transport == "grpc" else "grpc++"
    with device_cluster(protocol, device_library) as cluster:
        cluster.start_all({} if protocol == "grpc" else {"TENSORWIRE_TRANSPORT": transport})
        yield cluster


def of_worker(cluster: TensorFlowCluster, counter: str) -> int:
    return cluster.stats("worker:0")[counter]


def pushed_to(cluster: TensorFlowCluster, held: str) -> tuple[int, int]:
    """Tensors that were pushed to the worker, and to the ps of the device `held`."""
    ps = "ps:0" if held == PS_CPU else "ps:1"
    return of_worker(cluster, "pushed_tensors"), cluster.stats(ps)["pushed_tensors"]


@pytest.mark.parametrize("elements", [0, 3, LARGE])
@pytest.mark.parametrize(
    ("held", "computed"),
    [(PS_CPU, WORKER_DEVICE), (PS_DEVICE, WORKER_CPU), (PS_DEVICE, WORKER_DEVICE)],
    ids=["worker", "ps", "both"],
)
def test_training_on_a_device(
    devices: TensorFlowCluster, transport: str, held: str, computed: str, elements: int
) -> None:
    expected = np.linspace(0, 0.5, elements, dtype=np.float32)
    with tf.Graph().as_default() as graph:
        with tf.device(WORKER_CPU):
            start = tf1.placeholder(tf.float32, [None])
        handle = variable(held, f"trained_{held}_{computed}_{elements}")
        with tf.device(held):
            assign = tf.raw_ops.AssignVariableOp(resource=handle, value=start)
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        with tf.device(computed):
            gradient = value * value
        with tf.device(held):
            update = tf.raw_ops.AssignAddVariableOp(resource=handle, value=gradient)
        with devices.session(graph) as session:
            session.run(assign, {start: expected})
            read = of_worker(devices, "read_bytes")
            before = pushed_to(devices, held)
            for _ in range(STEPS):
                session.run(update)
                expected = expected + expected * expected
            pushes = [now - old for now, old in zip(pushed_to(devices, held), before, strict=True)]
            np.testing.assert_array_equal(session.run(value), expected)
            read = of_worker(devices, "read_bytes") - read
    # Each tensor is requested in one step, and pushed in the others.
    pushed = STEPS - 1 if devices.protocol == "grpc++" else 0
    assert min(pushes) >= pushed and (pushed > 0) == (max(pushes) > 0), pushes
    if elements == LARGE and held == PS_CPU:
        assert (read >= STEPS * expected.nbytes) == (transport == "memory")


def test_tensors_of_a_device_beside_pushed_ones(devices: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS_CPU):
            value = tf1.placeholder(tf.float32, [None], name="value") + 1.0
            word = tf.strings.as_string(value)
        with tf.device(WORKER_CPU):
            pushed = value * 2.0
            length = tf.strings.length(word)
        with tf.device(WORKER_DEVICE):
            squared = value * value
            same_word = tf.identity(word)  # strings are in host memory on every device
        with tf.device(PS_DEVICE):
            doubled = squared + squared
        with tf.device(PS_CPU):
            results = [pushed - 1.0, length + 0, doubled - 1.0, tf.strings.upper(same_word)]
        with devices.session(graph) as session:
            pushes = of_worker(devices, "pushed_tensors")
            for step in range(10):
                fed = np.arange(step, step + 5, dtype=np.float32)
                minus, letters, twice, upper = session.run(results, {"value:0": fed})
                np.testing.assert_array_equal(minus, (fed + 1) * 2 - 1)
                np.testing.assert_array_equal(twice, 2 * (fed + 1) ** 2 - 1)
                assert letters.tolist() == [len(text) for text in upper]
                assert [float(text) for text in upper] == (fed + 1).tolist()
            pushes = of_worker(devices, "pushed_tensors") - pushes
    assert (pushes > 0) == (devices.protocol == "grpc++")


def test_a_tensor_that_was_pushed_into_host_memory_comes_to_the_device_too(
    devices: TensorFlowCluster,
) -> None:
    """Two graphs of one session use the same key for a tensor to a device; each graph chooses
    itself between device memory and host memory.
    """
    with tf.Graph().as_default() as graph:
        with tf.device(PS_CPU):
            value = tf1.placeholder(tf.float32, [None], name="value") + 1.0
        with tf.device(WORKER_DEVICE):
            on_host = tf.negative(value, name="result")
            on_device = tf.identity(value, name="result")
        fed = np.arange(5, dtype=np.float32)
        with devices.session(graph, step_timeout_ms=60_000) as session:
            for _ in range(3):
                for _ in range(5):
                    found = session.run(on_host, {"value:0": fed})
                    np.testing.assert_array_equal(found, -fed - 1)
                for _ in range(20):
                    found = session.run(on_device, {"value:0": fed})
                    np.testing.assert_array_equal(found, fed + 1)


def test_tensors_of_a_device_beside_fused_ones(devices: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS_CPU):
            values = [tf.fill([i + 1], float(i)) for i in range(8)]
        with tf.device(WORKER_CPU):
            on_cpu = [value * value for value in values[:4]]
        with tf.device(WORKER_DEVICE):
            on_device = [value * value for value in values[4:]]
        with tf.device(PS_CPU):
            total_of_all = tf.add_n([tf.reduce_sum(value) for value in on_cpu + on_device])
        with fusing_session(devices, graph) as session:
            fused = total(devices, "fused_tensors")
            for _ in range(STEPS):
                assert session.run(total_of_all) == sum(i * i * (i + 1) for i in range(8))
            fused = total(devices, "fused_tensors") - fused
    assert fused == STEPS * 8  # tensors between the CPUs, in both directions


@pytest.mark.parametrize(("near", "far"), [(PS_CPU, WORKER_DEVICE), (WORKER_DEVICE, PS_CPU)])
def test_the_branch_not_taken_of_a_device(devices: TensorFlowCluster, near: str, far: str) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(WORKER_CPU):
            value = tf1.placeholder(tf.float32, [None], name="value")
            pred = tf1.placeholder(tf.bool, [], name="pred")
        with tf.device(near):
            passed = tf.identity(value)
            if_false, if_true = tf.raw_ops.Switch(data=passed, pred=pred)
            if_false, if_true = tf.identity(if_false), tf.identity(if_true)
        with tf.device(far):
            branches = [if_false + if_false, if_true * if_true]
            merged, _ = tf.raw_ops.Merge(inputs=branches)
        with tf.device(near):
            result = tf.identity(merged)
        with devices.session(graph) as session:
            fed = np.arange(5, dtype=np.float32)
            for taken in (True, False, True, True, False, False):
                found = session.run(result, {"value:0": fed, "pred:0": taken})
                np.testing.assert_array_equal(found, fed * fed if taken else fed + fed)


def test_a_list_of_tensors_goes_through_a_device(devices: TensorFlowCluster) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(PS_CPU):
            value = tf1.placeholder(tf.float32, [3], name="value") + 1.0
            handle = tf.raw_ops.EmptyTensorList(
                element_shape=-1, max_num_elements=-1, element_dtype=tf.float32
            )
            for element in (value, value * 2.0):
                handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=element)
        with tf.device(WORKER_DEVICE):
            squared = value * value
            handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=squared)
        with tf.device(PS_CPU):
            stacked = tf.raw_ops.TensorListStack(
                input_handle=handle, element_shape=[-1], element_dtype=tf.float32
            )
        with devices.session(graph) as session:
            for step in range(STEPS):
                fed = np.arange(step, step + 3, dtype=np.float32)
                found = session.run(stacked, {"value:0": fed})
                np.testing.assert_array_equal(found, [fed + 1, 2 * (fed + 1), (fed + 1) ** 2])


@pytest.mark.newest
@pytest.mark.parametrize("access", ["ReadOnHost", "UseHostMemory"])
def test_a_copy_that_is_left_out_crashes(
    access: str,
    device_library: Path,
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = f"import ctypes, tensorflow; ctypes.CDLL({str(device_library)!r}).{access}()"
    assert python("-c", code).returncode == -signal.SIGSEGV
