"""TensorFlow's own fault-tolerance tests of ClusterCoordinator, which ship in its wheel.

Run by `run.py` under a name that does not end in .py, because TensorFlow's test runner starts its
tasks by running the test program again. PROTOCOL names the protocol of the cluster.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import multi_process_runner, multi_worker_test_base
from tensorflow.python.distribute.cluster_resolver import SimpleClusterResolver
from tensorflow.python.distribute.coordinator import fault_tolerance_test_base

import tensorwire.tf  # noqa: F401

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


class MultiWorker(fault_tolerance_test_base.BaseFaultToleranceTest, tf.test.TestCase):
    """Two workers and two ps."""

    def setUp(self) -> None:
        super().setUp(2, 2)


class SingleWorker(fault_tolerance_test_base.BaseFaultToleranceTest, tf.test.TestCase):
    """A worker and a ps."""

    def setUp(self) -> None:
        super().setUp(1, 1)


if __name__ == "__main__":
    multi_process_runner.test_main()
