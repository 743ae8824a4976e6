"""The doctor's rules, on recorded looks at real jobs from `benchmarks/faults --keep`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import one_line, run_in_process
from harness.faults import JOBS, FaultJob
from tensorwire.doctor import job_evidence
from tensorwire.doctor.diagnose import diagnose
from tensorwire.doctor.evidence import SMALLEST_COST, Diagnosis, Evidence, JobEvidence, Stall
from tensorwire.doctor.records import placement_of_plan, read, scaling_of, to_json
from tensorwire.doctor.rules import RULES
from tensorwire.errors import TensorwireError
from tensorwire.metrics import collect
from tensorwire.metrics.observed_job import ObservedJob
from tensorwire.metrics.task_metrics import (
    PoolMetrics,
    ProcessMetrics,
    ServedTask,
    TaskMetrics,
    TensorMetrics,
)
from tensorwire.placement import plan
from tensorwire.placement.plan import Variable
from tensorwire.report import doctor as report
from tensorwire.report import page

LOOKS = Path(__file__).with_name("looks")


def look(name: str) -> Evidence:
    path = LOOKS / f"{name.replace(' ', '-')}.json"
    assert path.exists(), f'record it, as root: benchmarks/faults "{name}" --keep tests/unit/looks'
    return read(path)


def job_of(evidence: Evidence) -> JobEvidence:
    assert evidence.job is not None
    return evidence.job


def test_what_a_session_receives_once_is_not_taken_for_its_steps() -> None:
    worker, ps = "/job:worker/replica:0/task:0", "/job:ps/replica:0/task:0"

    def metrics(at_s: float, counts: dict[str, int]) -> TaskMetrics:
        return TaskMetrics(
            process=ProcessMetrics("here", 42, 2, at_s, 0.0, 10**9),
            clock_us=int(at_s * 1e6),
            **dict.fromkeys(
                ("recv_tensors", "pushed_tensors", "served_tensors", "run_graphs", "eager_calls",
                 "fused_messages", "fused_tensors", "recv_waiting_us"), 0),
            pool=PoolMetrics(),
            tasks=(ServedTask(worker, 0),),
            peers=(),
            reactors=(),
            tensors=tuple(
                TensorMetrics(worker, ps, "in", name, count, 1000 * count, 0, 0)
                for name, count in counts.items()
            ),
        )  # fmt: skip

    begun = {f"is_initialized_{n}": 1 for n in range(60)}
    rows = {f"rows_{n}": 500 for n in range(30)}
    before, after = metrics(0.0, {}), metrics(5.0, {**begun, **rows})
    (usage,) = job_evidence.job_of([before], [after], "", job_evidence.HostFacts()).tasks
    assert usage.steps == 500


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_with_one_fault_has_that_finding_and_no_other(job: FaultJob) -> None:
    found = [finding.rule for finding in diagnose(look(job.name)).findings]
    assert found == ([job.expects] if job.expects else [])


def test_every_rule_has_a_job_that_was_made_for_it() -> None:
    expected = {job.expects for job in JOBS if job.expects}
    assert expected == set(RULES)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_finding_has_figures_and_a_change(job: FaultJob) -> None:
    for finding in diagnose(look(job.name)).findings:
        assert finding.change
        assert finding.evidence
        if finding.cost is not None:
            assert SMALLEST_COST <= finding.cost <= 1
            assert any(re.search(r"\d", sentence) for sentence in finding.evidence)


def test_the_variable_that_is_too_big_is_named_with_its_size() -> None:
    (finding,) = diagnose(look("one big variable")).findings
    assert finding.title.startswith("embedding (12 MB) is too big for one ps: ps:0")


def test_a_table_that_grows_is_spread_where_the_script_places_it() -> None:
    found = look("one big variable")
    assert found.placement is not None
    parts = [dataclasses.replace(each, grows=True) for each in found.placement.parts]
    placement = dataclasses.replace(found.placement, parts=tuple(parts))
    (finding,) = diagnose(dataclasses.replace(found, placement=placement)).findings
    assert "Spread embedding (12 MB) over all ps" in finding.change
    assert "--placement" not in finding.change


def test_a_worker_that_computes_a_step_longer_than_the_look_has_no_finding() -> None:
    waiting = look("a worker that waits")
    job = job_of(waiting)

    def with_cpu(cpu_s: float) -> Diagnosis:
        tasks = [
            dataclasses.replace(task, stall=Stall("step"), cpu_s=cpu_s * task.seconds)
            if task.stall
            else task
            for task in job.tasks
        ]
        return diagnose(
            dataclasses.replace(waiting, job=dataclasses.replace(job, tasks=tuple(tasks)))
        )

    said = with_cpu(0.9)
    assert "no-step" not in [finding.rule for finding in said.findings]
    assert any("which computes but ended no step in" in each for each in said.looked_at)
    (finding,) = (each for each in with_cpu(0.01).findings if each.rule == "no-step")
    assert finding.confidence == "low" and "Look longer" in finding.change


def test_findings_come_in_the_order_of_what_they_cost_and_risks_last() -> None:
    slow, risky = look("one slow worker"), look("no device filters")
    threads = look("many communication threads")
    tasks = [
        dataclasses.replace(task, reactors=16) if task.job == "ps" else task
        for task in job_of(slow).tasks
    ]
    both = dataclasses.replace(
        slow, job=dataclasses.replace(job_of(slow), tasks=tasks), sessions=risky.sessions
    )
    assert diagnose(threads).findings[0].rule == "threads-over-cores"
    findings = diagnose(both).findings
    costs = [finding.cost for finding in findings]
    assert costs[-1] is None and findings[-1].rule == "no-device-filters"
    known = [cost for cost in costs if cost is not None]
    assert len(known) > 1 and known == sorted(known, reverse=True)
    assert {"straggler", "no-device-filters"} <= {finding.rule for finding in findings}


def test_a_straggler_is_told_what_a_queue_of_work_would_bring() -> None:
    slow = look("one slow worker")
    (finding,) = [f for f in diagnose(slow).findings if f.rule == "straggler"]
    rates = [worker.steps / worker.seconds for worker in job_of(slow).workers if worker.steps]
    share = len(rates) * min(rates) / sum(rates)
    assert f"WorkQueue: if each worker has a fixed share of it now, an epoch takes {share:.0%}" in (
        finding.change
    )


def test_a_healthy_job_is_told_what_was_looked_at_and_what_was_not() -> None:
    said = list(report.lines(diagnose(look("healthy"))))
    assert said[0] == report.NOTHING
    assert any(line.startswith("looked at: 2 ps and 2 workers on grpc++") for line in said)
    assert any(line.startswith("not looked at: the input path") for line in said)


def test_a_link_that_is_used_one_direction_after_the_other_is_full_at_half_of_each() -> None:
    full = look("slow link")
    tasks = [
        dataclasses.replace(task, tx_bytes=12.0e6 * task.seconds, rx_bytes=12.0e6 * task.seconds)
        for task in job_of(full).tasks
    ]
    in_turns = dataclasses.replace(full, job=dataclasses.replace(job_of(full), tasks=tuple(tasks)))
    (finding,) = diagnose(in_turns).findings
    assert finding.rule == "link-saturated"
    assert "12 MB/s out and 12 in at" in finding.evidence[0]
    for_ps = [
        dataclasses.replace(
            task,
            split=task.split
            and dataclasses.replace(
                task.split, wire_s=0.0, ps_s=task.split.ps_s + task.split.wire_s
            ),
        )
        for task in tasks
    ]
    job = dataclasses.replace(job_of(full), tasks=tuple(for_ps))
    assert not diagnose(dataclasses.replace(full, job=job)).findings


def test_a_full_link_is_found_once_its_rate_is_told() -> None:
    known = look("slow link")
    hosts = [dataclasses.replace(host, link_mb_per_s=None) for host in job_of(known).hosts]
    job = dataclasses.replace(job_of(known), hosts=tuple(hosts))
    unknown = dataclasses.replace(known, job=job)
    without = diagnose(unknown)
    assert not without.findings
    assert any(each.startswith("how full the links") for each in without.not_looked_at)
    told = diagnose(unknown.with_link(25.0))
    assert [finding.rule for finding in told.findings] == ["link-saturated"]
    assert not any(each.startswith("how full") for each in told.not_looked_at)


def test_no_evidence_is_no_finding() -> None:
    diagnosis = diagnose(Evidence())
    assert not diagnosis.findings and not diagnosis.looked_at


def test_a_link_is_not_judged_within_one_host() -> None:
    full = look("slow link")
    tasks = [dataclasses.replace(task, host="host0") for task in job_of(full).tasks]
    alone = dataclasses.replace(full, job=dataclasses.replace(job_of(full), tasks=tasks))
    assert not diagnose(alone).findings


def test_a_slow_grpc_is_no_matter_to_a_job_on_grpcpp() -> None:
    layers = look("stock grpc").layers
    assert layers is not None
    assert not diagnose(dataclasses.replace(look("healthy"), layers=layers)).findings


def test_a_balanced_placement_is_silent_and_an_uneven_one_names_its_variable() -> None:
    variables = [Variable("embedding", (100_000, 64), 4)]
    variables += [Variable(f"dense{index}", (256, 256), 4) for index in range(8)]
    uneven = placement_of_plan(plan.round_robin(variables, 5), "a graph")
    (finding,) = diagnose(Evidence(placement=uneven)).findings
    assert finding.rule == "big-variable" and finding.title.startswith("embedding is too big")
    even = placement_of_plan(plan.balanced(variables, 5), "a graph")
    assert not diagnose(Evidence(placement=even)).findings


def test_workers_that_bring_what_they_should_are_not_too_many() -> None:
    many = look("too many workers")
    assert many.scaling is not None
    few, most = many.scaling.runs
    fast = dataclasses.replace(most, steps_per_s=few.steps_per_s * most.workers / few.workers)
    scaling = dataclasses.replace(many.scaling, runs=(few, fast))
    found = diagnose(dataclasses.replace(many, scaling=scaling)).findings
    assert "workers-past-saturation" not in [finding.rule for finding in found]


def test_looks_with_as_many_workers_say_nothing_of_scaling() -> None:
    assert scaling_of([look("healthy"), look("healthy")]) is None
    scaling = scaling_of([look("slow ps"), look("healthy")])
    assert scaling is not None and [run.workers for run in scaling.runs] == [1, 2]


def test_a_diagnosis_is_read_as_it_was_written(tmp_path: Path) -> None:
    for job in JOBS:
        evidence = look(job.name)
        (tmp_path / "look.json").write_text(to_json(diagnose(evidence)))
        assert read(tmp_path / "look.json") == evidence


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"command": "bench tcp"}', '{"command": "doctor", "evidence": {"job": 3}}'],
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(TensorwireError, match=r"no record of a look at a job|is not JSON"):
        read(tmp_path / "other.json")


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_look_that_took_no_time_is_refused(tmp_path: Path, seconds: float) -> None:
    document = json.loads(to_json(diagnose(look("healthy"))))
    document["evidence"]["job"]["tasks"][0]["seconds"] = seconds
    (tmp_path / "look.json").write_text(json.dumps(document))
    with pytest.raises(TensorwireError, match="ps:0 was looked at for"):
        read(tmp_path / "look.json")


@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "names"),
    [("docs/doctor.md", set(RULES)), ("benchmarks/README.md", {job.name for job in JOBS})],
    ids=["rules", "jobs"],
)
def test_the_pages_of_the_doctor_have_each_rule_and_each_job(page: str, names: set[str]) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    assert names <= set(re.findall(r"^\| `?([^|`]+?)`? \|", text, re.MULTILINE))


def test_the_page_has_the_findings_and_their_figures() -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    text = page.html(report.page(diagnose(look("one big variable"))))
    assert "embedding (12 MB) is too big" in text
    assert "Split embedding" in text and "<svg" in text


def test_the_command_judges_a_kept_look_and_keeps_it_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "again.json"
    done = run_in_process(capsys, "doctor")("--record", LOOKS / "slow-link.json", "--json", kept)
    assert done.status == 0, done.err
    assert "1. The link of host2 is full  [link-saturated" in done.out
    document = json.loads(kept.read_text())
    assert [finding["rule"] for finding in document["findings"]] == ["link-saturated"]
    assert read(kept) == look("slow link")


class StartingJob(ObservedJob):
    """A job whose worker takes its first step between the third and the fourth look at it."""

    looks = 0

    def metrics(self) -> tuple[list[TaskMetrics], dict[str, str]]:
        self.looks += 1
        if self.looks == 1:
            return [], {}
        worker, ps = "/job:worker/replica:0/task:0", "/job:ps/replica:0/task:0"
        moved = TensorMetrics(worker, ps, "in", "table/read", max(0, self.looks - 3), 9, 0, 0)
        names = [field.name for field in dataclasses.fields(TaskMetrics)][2:10]
        task = TaskMetrics(
            process=ProcessMetrics("here", 42, 2, 0.0, 0.0, 10**9),
            clock_us=10**6 * self.looks,
            **dict.fromkeys(names, 0),
            tasks=(ServedTask(worker, 0),),
            tensors=(moved,),
        )
        return [task], {}


def test_waiting_ends_with_the_first_step_or_at_the_deadline() -> None:
    job = StartingJob([])
    job_evidence.wait_for_steps(job, 60)
    assert job.looks == 4
    job = StartingJob([])
    job_evidence.wait_for_steps(job, 0.001)
    assert job.looks == 2


def test_without_a_task_waiting_ends_at_its_deadline(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = run_in_process(capsys, "doctor")("--wait", "0.1")
    assert "nothing to look at" in one_line(done)


TWO_JOBS = """if True:
    import sys, time
    sys.path.insert(0, {folder!r})
    from test_top import in_cluster, metrics
    from tensorwire.metrics import endpoint, observed_job
    (now,) = in_cluster({cluster!r}, [metrics("ps:0", 10, 50.0)])
    address = endpoint.serve(lambda: now, "0").address
    observed_job.announce(address)
    print(address, flush=True)
    time.sleep(100)
"""


def test_tasks_of_two_jobs_are_not_judged_as_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = str(Path(__file__).parent)
    with contextlib.ExitStack() as stack:
        for cluster in ("a:1", "b:1"):
            code = TWO_JOBS.format(folder=folder, cluster=cluster)
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        done = run_in_process(capsys, "doctor")("--seconds", "0.5")
    assert done.status == 1
    (line,) = [each for each in done.err.splitlines() if "error" in each]
    assert re.search(
        r"these are tasks of 2 jobs: name the tasks of one job with --endpoints, "
        r"127\.0\.0\.1:\d+ \(the ps at a:1\) or 127\.0\.0\.1:\d+ \(the ps at b:1\)",
        line,
    )


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", None), ("50000 100000", 0.5)])
def test_a_quota_of_a_control_group_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: float | None
) -> None:
    group = tmp_path / "mount" / "pod" / "task"
    group.mkdir(parents=True)
    (group.parent / "cpu.max").write_text(quota)
    (tmp_path / "cgroup").write_text("0::/pod/task\n")
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path / 'mount'} cgroup2 rw 0 0\n")
    monkeypatch.setattr(collect, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(collect, "_MOUNTS", tmp_path / "mounts")
    assert collect.usable_cores() == (cores or len(os.sched_getaffinity(0)))


def test_workers_that_use_all_of_their_quota_are_found_and_those_with_cores_to_spare_are_not() -> (
    None
):
    evidence = look("workers at their CPU limit")
    job = job_of(evidence)
    (finding,) = diagnose(evidence).findings
    assert finding.title.startswith("The workers have no CPU left")
    assert re.search(
        r"^2 workers use \d+ % of the 0\.6 cores that they may use", finding.evidence[0]
    )
    free = [
        dataclasses.replace(task, cores=2.0) if task.job == "worker" else task for task in job.tasks
    ]
    unlimited = dataclasses.replace(evidence, job=dataclasses.replace(job, tasks=free))
    assert "worker-compute-bound" not in [each.rule for each in diagnose(unlimited).findings]


def test_tasks_that_poll_in_pods_of_less_than_a_core_are_crowded() -> None:
    evidence = look("polling on few cores")
    job = job_of(evidence)
    pods = [dataclasses.replace(host, cores=0.3) for host in job.hosts]
    found = diagnose(dataclasses.replace(evidence, job=dataclasses.replace(job, hosts=pods)))
    (finding,) = found.findings
    assert finding.rule == "polling-crowded" and "on 0.3 cores" in finding.evidence[0]
