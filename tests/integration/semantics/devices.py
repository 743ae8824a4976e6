"""A device whose memory the CPU cannot access (protected_device.cc), and clusters with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from plugin_unit import build_unit

from .support import TensorFlowCluster

# One ps without the device, whose shared memory other tasks can read, and one with the device.
JOBS = {"ps": 2, "worker": 1}
WITH_DEVICE = ("ps:1", "worker:0")

PS_CPU = "/job:ps/task:0/device:CPU:0"
PS_DEVICE = "/job:ps/task:1/device:PROTECTED:0"
WORKER_CPU = "/job:worker/task:0/device:CPU:0"
WORKER_DEVICE = "/job:worker/task:0/device:PROTECTED:0"

_SOURCE = Path(__file__).with_name("protected_device.cc")


def build_device(folder: Path) -> Path:
    """The device's library, for the installed TensorFlow."""
    library = folder / "protected_device.so"
    build_unit(library, [], [_SOURCE], flags=("-O1", "-shared", "-fPIC", "-Wl,--as-needed"))
    return library


def device_cluster(protocol: str, library: Path) -> TensorFlowCluster:
    """A cluster with the device. The plug-in is also loaded on grpc, for tensor fusion."""
    return TensorFlowCluster(
        protocol, JOBS, plugin=True, devices=dict.fromkeys(WITH_DEVICE, library)
    )


def variable(device: str, name: str) -> Any:
    """The handle of a float variable of any shape."""
    with tf.device(device):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=None, shared_name=name)
