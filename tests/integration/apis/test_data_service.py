"""Training on grpc++ reads from a tf.data service, which stays on gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .support import HERE, TENSORWIRE, train

pytestmark = pytest.mark.timeout(300, func_only=True)

SCRIPT = HERE / "data_service_script.py"
TOTAL = (np.arange(400).reshape(-1, 10) ** 2).sum(0).tolist()


def test_a_strategys_worker_reads_every_element(tmp_path: Path) -> None:
    arguments = ["--mode", "strategy"]
    jobs = {"data": 1, "ps": 1, "worker": 1, "chief": 1}
    told = train(SCRIPT, jobs, tmp_path, "grpc++", arguments, outside=["data"])
    assert told.values("chief-0") == TOTAL
    assert told.used_the_data_plane("ps-0")


def test_an_unchanged_session_with_a_service_runs_on_grpc_plus_plus(tmp_path: Path) -> None:
    prefix = [*TENSORWIRE, "run", "--protocol", "grpc++"]
    arguments = ["--mode", "session"]
    jobs = {"data": 1, "ps": 1, "worker": 1}
    told = train(SCRIPT, jobs, tmp_path, None, arguments, prefix, outside=["data"])
    assert told.values("worker-0") == TOTAL
    assert told.used_the_data_plane("ps-0")


def test_the_services_own_protocol_cannot_be_grpc_plus_plus(python: Any) -> None:
    # In its own process, because TensorFlow crashes when such a server is deleted.
    code = """
import os, tensorwire.tf
from tensorflow.data.experimental import service
try:
    service.DispatchServer(service.DispatcherConfig(port=0, protocol="grpc++"))
except Exception as error:
    print(type(error).__name__, error, flush=True)
    os._exit(0)
"""
    done = python("-c", code)
    assert "No credentials factory has been registered for protocol grpc++" in done.stdout
