"""Functions of TF2 that fail leave no memory in the tasks that ran them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from harness import zygote

from .support import PROTOCOLS, TensorFlowCluster, task_environment

pytestmark = [pytest.mark.newest, pytest.mark.timeout(300, func_only=True)]

SCRIPT = Path(__file__).with_name("failing_functions_script.py")
CALLS = {"large": 12, "fused": 120}
# If each failed call left its tensors, this would be 300 and 98 MB.
MOST_GROWTH_MB = 60
# Freed tensors go back to the kernel at once, so that what is resident is what is held.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mode", CALLS)
def test_failed_functions_leave_nothing_behind(plugin: None, mode: str, protocol: str) -> None:
    env = {"TENSORWIRE_REWRITES": "tensor_fuse" if mode == "fused" else "", **GIVES_BACK}
    jobs = {"ps": 1, "worker": 1, "chief": 1}
    with TensorFlowCluster(protocol, jobs, plugin=True) as cluster:
        cluster.ready(*(cluster.begin(job, 0, env) for job in ("ps", "worker")))
        told = {
            "protocol": protocol,
            "spec": cluster.spec,
            "pids": {name: task.pid for name, task in cluster.tasks.items()},
            "mode": mode,
            "calls": CALLS[mode],
            "most_growth_mb": MOST_GROWTH_MB,
        }
        done = zygote.run(
            [sys.executable, str(SCRIPT), json.dumps(told)],
            env={**os.environ, **task_environment(env)},
            timeout_s=240,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
    assert said["wrong"] == 0
    growth = {task: said["after"][task] - said["before"][task] for task in said["before"]}
    assert max(growth.values()) < MOST_GROWTH_MB, growth
