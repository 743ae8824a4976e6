"""The doctor on a job that runs, and the session's configuration that it recommends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tensorwire.bench import faults
from tensorwire.bench.faults import FaultJob, Table, Work
from tensorwire.doctor.diagnose import diagnose
from tensorwire.doctor.gather import running
from tensorwire.lab import HostSettings

pytestmark = pytest.mark.tensorflow

SMALL = tuple(Table(f"table{index}", 10, index % 2) for index in range(4))
JOB = FaultJob(
    "one big variable, no device filters",
    None,
    (Table("embedding", 12_000, 0), *SMALL),
    work=Work(input_ms=0, device_ms=0),
    ps_host=HostSettings(),
    worker_host=HostSettings(),
    filters=False,
)


class Silent:
    def activity(self, text: str) -> None:
        pass

    def advance(self, count: int = 1) -> None:
        pass


def test_a_running_job_is_told_its_big_variable_and_its_open_sessions() -> None:
    with faults.running(JOB, Silent()) as run:
        evidence = running.look(run.endpoints, 1.0)
    findings = {finding.rule: finding for finding in diagnose(evidence).findings}
    assert findings["big-variable"].title.startswith("embedding (12 MB) is too big for one ps")
    assert evidence.sessions is not None
    assert sorted(evidence.sessions.without_device_filters) == ["worker:0", "worker:1"]
    assert "no-device-filters" in findings


FILTERS = """
import tensorwire.tf
from tensorwire.errors import UsageError
cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
make = tensorwire.tf.ConfigProto
print(*make(cluster=cluster, job_name="worker", task_index=1).device_filters)
print(*make(cluster=cluster, job_name="chief").device_filters)
print(*make(device_filters=["/job:ps"], tensor_fuse=True).device_filters)
for wrong in ({"job_name": "worker", "task_index": 2}, {"device_filters": ["/job:ps"]}):
    try:
        make(cluster=cluster, **wrong)
    except UsageError as error:
        print(error)
"""


def test_config_proto_sets_device_filters_for_the_cluster_it_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILTERS], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == [
        "/job:ps /job:worker/task:1",
        "/job:ps /job:chief/task:0",
        "/job:ps",
        "the cluster has no task 2 of job 'worker'",
        "ConfigProto takes device_filters or the cluster that sets them",
    ]
