"""TensorFlow's own fault-tolerance tests of ClusterCoordinator, which ship in its wheel.

Run by `run.py` under a name that does not end in .py, which TensorFlow's test runner demands. The
runner forks its tasks from a server of `multiprocessing` that has imported this file. PROTOCOL
names the protocol of the cluster.
"""

from __future__ import annotations

import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.distribute import multi_process_runner, multi_worker_test_base
from tensorflow.python.distribute.cluster_resolver import SimpleClusterResolver
from tensorflow.python.distribute.coordinator import fault_tolerance_test_base

import tensorwire.tf  # noqa: F401
from tensorwire.bench.lab.ports import PortLease

PROTOCOL = os.environ["PROTOCOL"]


class Resolver(SimpleClusterResolver):
    """A resolver with PROTOCOL instead of the suite's grpc."""

    def __init__(self, spec: Any, **options: Any) -> None:
        super().__init__(spec, **{**options, "rpc_layer": PROTOCOL})


def _create_cluster(*arguments: Any, **options: Any) -> Any:
    return _create_stock_cluster(*arguments, **{**options, "rpc_layer": PROTOCOL})


_create_stock_cluster = multi_worker_test_base.create_multi_process_cluster
multi_worker_test_base.create_multi_process_cluster = _create_cluster
fault_tolerance_test_base.SimpleClusterResolver = Resolver
# The suite's own picks a port that is free now; a task that is killed must also get it two seconds
# later. If it does not, the test waits for ever.
multi_worker_test_base.pick_unused_port = PortLease().take


class MultiWorker(fault_tolerance_test_base.BaseFaultToleranceTest, tf.test.TestCase):
    """Two workers and two ps."""

    def setUp(self) -> None:
        super().setUp(2, 2)


class SingleWorker(fault_tolerance_test_base.BaseFaultToleranceTest, tf.test.TestCase):
    """A worker and a ps."""

    def setUp(self) -> None:
        super().setUp(1, 1)


def _fork_server(path: object, arguments: Sequence[str], kept: Sequence[int]) -> int:
    """As `multiprocessing.util.spawnv_passfds`, but forks; the last argument is Python code."""
    pid = os.fork()
    if pid:
        return pid
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))
    del sys.argv[1:]
    try:
        exec(arguments[-1], {})
    finally:
        os._exit(0)


def _start_server() -> None:
    """Starts the server that tasks are forked from, before the runner does.

    The runner would execute this file for it, and once more for a helper that needs no TensorFlow.
    Here the server is a fork of this process, which has TensorFlow imported. If other threads run
    by now, it is executed: they would be missing in a fork.
    """
    multiprocessing.resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        if len(list(Path("/proc/self/task").iterdir())) == 1:
            patch.setattr(multiprocessing.util, "spawnv_passfds", _fork_server)
        multiprocessing.forkserver.ensure_running()


if __name__ == "__main__":
    _start_server()
    multi_process_runner.test_main()
