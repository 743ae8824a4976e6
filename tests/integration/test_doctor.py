"""The doctor on a running job, and the session configuration that it recommends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import faults
from harness.faults import FaultJob, Table, Work
from tensorwire.bench.experiments import input as bench_input
from tensorwire.bench.frame.tasks import Unwatched
from tensorwire.bench.lab import HostSettings
from tensorwire.bench.lab.ports import PortLease
from tensorwire.doctor import job_evidence
from tensorwire.doctor.diagnose import diagnose
from tensorwire.errors import TensorwireError
from tensorwire.metrics.observed_job import fetch
from waiting import wait_until

SMALL = tuple(Table(f"table{index}", 10, index % 2) for index in range(4))
JOB = FaultJob(
    "no device filters",
    None,
    (Table("embedding", 12_000, 0), *SMALL),
    work=Work(input_ms=0, device_ms=0),
    ps_host=HostSettings(),
    worker_host=HostSettings(),
    filters=False,
)


def test_a_running_job_is_told_its_sessions_without_device_filters() -> None:
    with faults.running(JOB, Unwatched()) as run:
        evidence = job_evidence.observe(run.endpoints, 1.0)
    assert evidence.sessions is not None
    assert sorted(evidence.sessions.without_device_filters) == ["worker:0", "worker:1"]
    assert "no-device-filters" in {finding.rule for finding in diagnose(evidence).findings}


STALLED = Path(faults.__file__).with_name("stalled_worker.py")
_DEADLINE_S = 90.0

# Why the worker completes no step; its index; the number of ps that it expects (one is started).
REASONS = [
    ("recv", 0, 1, "waits for token of ps:0"),
    ("step", 0, 1, "ps:0 waits for its mul"),
    ("initialization", 1, 1, "it waits for the chief."),
    ("no session", 0, 2, "it opened no session"),
    ("between steps", 0, 1, "worker:0 has an open session but executes nothing in it"),
]


@contextlib.contextmanager
def stalled(reason: str, index: int, expected_ps: int, folder: Path) -> Iterator[list[str]]:
    """The endpoints of a ps and of a stalled worker."""
    lease = PortLease()
    with contextlib.ExitStack() as stack:
        stack.callback(lease.release)
        spec = {
            job: [f"127.0.0.1:{lease.take()}" for _ in range(count)]
            for job, count in (("ps", expected_ps), ("worker", 2))
        }
        endpoints = []
        for job, number in (("ps", 0), ("worker", index)):
            socket = folder / f"{job}.sock"
            task = [json.dumps(spec), job, str(number), reason, str(folder / "there")]
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(STALLED), *task],
                    env={**os.environ, "TENSORWIRE_METRICS": f"unix:{socket}"},
                    stderr=stack.enter_context((folder / f"{job}.log").open("w")),
                )
            )
            stack.callback(process.kill)
            endpoints.append(f"unix:{socket}")
        wait_until(lambda: all(fetch(each).metrics for each in endpoints), _DEADLINE_S)
        wait_until((folder / "there").exists, _DEADLINE_S)
        yield endpoints


@pytest.mark.newest
@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(("reason", "index", "expected_ps", "says"), REASONS)
def test_a_worker_that_takes_no_step_is_said_first_with_what_it_waits_for(
    reason: str, index: int, expected_ps: int, says: str, tmp_path: Path
) -> None:
    with stalled(reason, index, expected_ps, tmp_path) as endpoints:

        def is_said() -> bool:
            findings = diagnose(job_evidence.observe(endpoints, 0.5)).findings
            return (
                bool(findings)
                and findings[0].rule == "no-step"
                and says in " ".join(findings[0].evidence)
            )

        wait_until(is_said, _DEADLINE_S)


@pytest.mark.newest
@pytest.mark.usefixtures("plugin")
def test_the_task_that_a_session_waits_for_is_named_in_the_log_and_by_the_doctor(
    tmp_path: Path,
) -> None:
    with stalled("no session", 0, 2, tmp_path) as endpoints:
        wait_until(
            lambda: "filters" in diagnose(job_evidence.observe(endpoints, 0.5)).findings[0].change,
            _DEADLINE_S,
        )
        finding = diagnose(job_evidence.observe(endpoints, 0.5)).findings[0]
        assert finding.evidence == ("worker:0 waits for ps:1, which does not answer.",)
        log = (tmp_path / "worker.log").read_text()
    assert "/job:ps/replica:0/task:1 has not answered for 10 s" in log
    assert "--device-filters auto" in log


@pytest.mark.newest
@pytest.mark.usefixtures("plugin")
def test_a_worker_that_has_finished_is_not_said_to_take_no_step(tmp_path: Path) -> None:
    with stalled("finished", 0, 1, tmp_path) as endpoints:
        evidence = job_evidence.observe(endpoints, 0.5)
    assert evidence.job is not None
    assert [worker.stall for worker in evidence.job.workers] == [None]
    assert not diagnose(evidence).findings


FILTERS = """
import tensorwire.tf
from tensorwire.errors import UsageError
cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
make = tensorwire.tf.ConfigProto
print(*make(cluster=cluster, job_name="worker", task_index=1).device_filters)
print(*make(cluster=cluster, job_name="chief").device_filters)
print(*make(device_filters=["/job:ps"], tensor_fuse=True).device_filters)
for wrong in (
    {"job_name": "worker", "task_index": 2},
    {"job_name": "worker", "task_index": "1"},
    {"device_filters": ["/job:ps"]},
):
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
        "the cluster has no task 2 of job 'worker'; its jobs: chief (1), worker (2), ps (1)",
        "task_index is '1': give a number, as int(…) makes it of text",
        "give ConfigProto either cluster or device_filters: cluster sets device_filters",
    ]


HEALTHY = Path(__file__).parents[1] / "unit" / "looks" / "healthy.json"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of training data."""
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    (folder / "part-0").write_bytes(bytes(3_000_000))
    (folder / "more" / "part-1").write_bytes(bytes(5_000_000))
    return folder


@pytest.mark.newest
def test_data_is_read_and_nothing_found_says_that_it_was_looked_at(
    tensorwire: Any, data: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "look.json"
    options = ["--data", data, "--data-mb-per-step", "2", "--json", kept]
    done = tensorwire("doctor", *options, timeout_s=180)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Nothing found that costs 5 % of a step or more."
    (read,) = (line for line in lines if line.startswith("looked at: the input path"))
    assert f": 2 files at {data}" in read
    assert re.search(r": \S+ MB/s, enough for \S+ steps a second of one worker$", read)
    assert any(line.startswith("not looked at: a running job") for line in lines)
    probe = json.loads(kept.read_text())["evidence"]["input"]
    assert probe["mb_per_s"] > 0 and probe["open_ms"] > 0
    assert probe["needed_mb_per_s"] is None


@pytest.mark.newest
def test_storage_that_gives_less_than_the_workers_need_is_found(
    tensorwire: Any, data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    page = tmp_path / "page.html"
    # No storage delivers 1 TB per step of some milliseconds.
    job = ("--record", HEALTHY, "--data-mb-per-step", "1e6")
    done = tensorwire("doctor", *job, "--data", data, "--report", page, timeout_s=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1. The workers wait for their input 100 % of a step  [input-bou")
    assert "=> The storage is too slow" in done.stdout
    assert "The workers wait for their input 100 % of a step" in page.read_text()


@pytest.mark.newest
def test_data_that_is_not_there_is_refused_before_the_job_is_looked_at(
    tensorwire: Any, tmp_path: Path
) -> None:
    missing = tmp_path / "nosuch"
    lease = PortLease()
    nobody = ("--endpoints", f"127.0.0.1:{lease.take()}")
    done = tensorwire("doctor", *nobody, "--data", missing, timeout_s=180)
    lease.release()
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == f"tensorwire: error: there is no file at {missing}"
    assert "Traceback" not in done.stderr


@pytest.mark.newest
def test_data_is_read_through_the_file_systems_of_tensorflow(tmp_path: Path) -> None:
    import tensorflow as tf

    with tf.io.gfile.GFile("ram://data/part-0", "wb") as file:
        file.write(bytes(1_000_000))
    found = bench_input.probe("ram://data/part-*", 1.0)
    assert (found.files, found.read_bytes) == (1, 1_000_000)
    for wrong, message in ((tmp_path / "none", "there is no file at"), (tmp_path, "there is no")):
        with pytest.raises(TensorwireError, match=message):
            bench_input.probe(str(wrong), 1.0)
    with pytest.raises(TensorwireError, match=r"cannot read nowhere://data: .*not implemented"):
        bench_input.probe("nowhere://data", 1.0)
