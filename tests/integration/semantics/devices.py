"""A device whose memory the CPU cannot access (protected_device.cc), and clusters with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

import tensorwire
from plugin_unit import build_unit
from tensorwire.engine import native_folder
from tensorwire.plugin import cache

from .support import TensorFlowCluster

# One ps without the device, whose shared memory other tasks can read, and one with the device.
JOBS = {"ps": 2, "worker": 1}
WITH_DEVICE = ("ps:1", "worker:0")

PS_CPU = "/job:ps/task:0/device:CPU:0"
PS_DEVICE = "/job:ps/task:1/device:PROTECTED:0"
WORKER_CPU = "/job:worker/task:0/device:CPU:0"
WORKER_DEVICE = "/job:worker/task:0/device:PROTECTED:0"

_SOURCE = Path(__file__).with_name("protected_device.cc")
# For each name: the file, and the condition under which the plug-in copies between device and host.
COPIES = {
    "TO_HOST": ("tensors/host_copy.cc", "if (!is_dead && "),
    "TO_DEVICE": ("transport/rendezvous.cc", "if (on_accelerator_ && !incoming"),
}
_LEAVE_OUT = "LEAVE_OUT_"  # the prefix of an environment variable


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


def package_without_copies(folder: Path) -> dict[str, str]:
    """A copy of the package whose plug-in omits a device copy if `left_out` is in the environment.

    Returns the environment that imports this package. Its plug-in is compiled.
    """
    package = folder / "tensorwire"
    shutil.copytree(Path(tensorwire.__file__).parent, package)
    # The same folder, unless the package is an editable install.
    shutil.copytree(native_folder().parent, package, dirs_exist_ok=True)
    for copy, (file, condition) in COPIES.items():
        path = package / "_native" / "plugin" / file
        source = path.read_text()
        assert source.count(condition) == 1, f"{file} copies under another condition"
        asked = f'if (std::getenv("{_LEAVE_OUT}{copy}") == nullptr && '
        path.write_text(source.replace(condition, condition.replace("if (", asked)))
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        cache.CACHE_VARIABLE: str(folder / "cache"),
    }
    subprocess.run(
        [sys.executable, "-m", "tensorwire.cli.main", "build"],
        env={**os.environ, **environment},
        check=True,
        timeout=1200,
    )
    return environment


def left_out(copy: str) -> dict[str, str]:
    """The environment of a task that omits this copy."""
    return {f"{_LEAVE_OUT}{copy}": "1"}


def variable(device: str, name: str) -> Any:
    """The handle of a float variable of any shape."""
    with tf.device(device):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=None, shared_name=name)
