"""`tensorwire top`: rates, imbalance, the screen and the command."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tensorwire.metrics import observed_job
from tensorwire.metrics.rates import JobRates, between, by_cluster, find_imbalances, job_rates
from tensorwire.metrics.task_metrics import (
    PeerTraffic,
    PoolMetrics,
    ProcessMetrics,
    QueueWorker,
    ReactorMetrics,
    ServedTask,
    TableMetrics,
    TaskMetrics,
    TensorMetrics,
    VariableMetrics,
    WorkQueueMetrics,
)
from tensorwire.report.top import screen

SNAPSHOTS = Path(__file__).with_name("snapshots")
MB = 1_000_000
ZERO = dict.fromkeys([field.name for field in dataclasses.fields(PeerTraffic)][2:], 0)


def full_name(task: str) -> str:
    job, index = task.split(":")
    return f"/job:{job}/replica:0/task:{index}"


def metrics(
    task: str, seconds: float, out_mb: float = 0.0, cores: float = 0.0, **counts: Any
) -> TaskMetrics:
    """The metrics of a task that has run for `seconds` at a steady rate."""
    name, peer = full_name(task), full_name("worker:0")
    sent = int(out_mb * MB * seconds)
    pid = 100 + sum(map(ord, task))
    return TaskMetrics(
        process=ProcessMetrics("here", pid, 4, 0.0, cores * seconds, 512 * MB),
        clock_us=int(seconds * 1e6),
        recv_tensors=0,
        pushed_tensors=0,
        served_tensors=0,
        run_graphs=int(10 * seconds),
        eager_calls=0,
        fused_messages=0,
        fused_tensors=0,
        recv_waiting_us=int(counts.get("waiting", 0.0) * seconds * 1e6),
        pool=PoolMetrics(),
        tasks=(ServedTask(name, 0),),
        peers=(
            PeerTraffic(
                name,
                peer,
                **{
                    **ZERO,
                    "tx_bytes": sent // 4,
                    "lent_bytes": sent - sent // 4,
                    "rx_bytes": int(1000 * seconds),
                    "not_ready_us": int(3e5 * seconds),
                    "wire_us": int(1e5 * seconds),
                },
            ),
        ),
        reactors=(
            ReactorMetrics(name, 0, int(1e5 * seconds)),
            ReactorMetrics(name, 1, int(4e5 * seconds)),
        ),
        tensors=(
            TensorMetrics(name, peer, "out", "embedding/read", 1, sent * 9 // 10, 0, 0),
            TensorMetrics(name, peer, "out", "", 1, sent - sent * 9 // 10, 0, 0),
            TensorMetrics(name, peer, "fused", "bias/read", 1, sent // 2, 0, 0),
        ),
    )


def job(seconds: float) -> list[TaskMetrics]:
    return [
        metrics("worker:10", seconds, 1.0, 0.9, waiting=0.75),
        metrics("worker:2", seconds, 1.0, 1.0, waiting=0.25),
        metrics("ps:0", seconds, 832.0, 1.55),
        metrics("ps:1", seconds, 84.0, 0.05),
        metrics("ps:2", seconds, 84.0, 0.05),
    ]


RATES = job_rates(job(10), job(12), {"10.0.0.7:9100": "timed out"})


def test_rates_are_what_changed_over_the_time_between() -> None:
    (ps,) = [task for task in RATES.tasks if task.task == "ps:0"]
    assert ps.seconds == 2.0
    assert ps.cores == pytest.approx(1.55)
    assert ps.out_bytes_per_s == pytest.approx(832 * MB)
    assert ps.in_bytes_per_s == pytest.approx(1000)
    assert ps.requests_per_s == pytest.approx(10)
    assert ps.wire == pytest.approx(0.25)
    assert ps.reactor == pytest.approx(0.4)
    assert ps.hot is not None
    assert (ps.hot.name, ps.hot.share) == ("embedding/read", pytest.approx(0.9))
    assert ps.hot.bytes_per_s == pytest.approx(0.9 * 832 * MB)


def test_a_work_queue_is_shown_with_each_workers_rate() -> None:
    def reading(seconds: float, done: int) -> TaskMetrics:
        workers = (
            QueueWorker(full_name("worker:1"), done + 1, 1, done),
            QueueWorker(full_name("worker:0"), 2, 0, 2),
        )
        queue = WorkQueueMetrics("files/state", 100, done + 2, 1, 3, workers)
        return dataclasses.replace(metrics("ps:0", seconds), work_queues=(queue,))

    shown = io.StringIO()
    rates = job_rates([reading(10, 4)], [reading(12, 9)])
    Console(file=shown, width=80).print(screen(rates, 2, 80))
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert "files: 11 of 100 items done, 1 in work, 3 given back" in lines
    words = [line.split() for line in lines]
    assert words[-2:] == [["worker:0", "0", "2", "0.00/s"], ["worker:1", "1", "9", "2.50/s"]]


def test_tables_that_grow_are_shown_the_largest_first() -> None:
    def reading(seconds: float, rows: int) -> TaskMetrics:
        task = full_name("ps:0")
        tables = (TableMetrics(task, "items", 10, 72), TableMetrics(task, "users", rows, 72))
        return dataclasses.replace(metrics("ps:0", seconds), tables=tables)

    shown = io.StringIO()
    rates = job_rates([reading(10, 1_000_000)], [reading(12, 1_500_000)])
    Console(file=shown, width=80).print(screen(rates, 2, 80))
    words = [line.split() for line in shown.getvalue().splitlines()]
    assert words[-4:] == [
        ["tables", "that", "grow:", "108", "MB"],
        ["table", "task", "rows", "new", "rows", "size"],
        ["users", "ps:0", "1,500,000", "250,000/s", "108", "MB"],
        ["items", "ps:0", "10", "0/s", "720", "B"],
    ]


def test_a_task_that_was_started_again_has_no_rates_yet() -> None:
    before, now = metrics("ps:0", 10), metrics("ps:0", 3)
    assert between(before, now) is None  # the host was restarted, not the task
    restarted = dataclasses.replace(now, process=dataclasses.replace(now.process, pid=7))
    assert between(before, restarted) is None
    assert job_rates([before], [restarted]).tasks == ()


def test_the_hot_task_is_out_of_balance_and_the_others_are_not() -> None:
    found = {(each.task, each.what): each for each in RATES.imbalances}
    assert set(found) == {("ps:0", "bytes"), ("ps:0", "CPU")}
    assert found["ps:0", "bytes"].share == pytest.approx(0.832, abs=1e-3)
    assert found["ps:0", "bytes"].over_mean == pytest.approx(2.5, abs=0.01)


def test_the_hot_tensor_is_named_for_its_variable_where_a_task_knows_it() -> None:
    known = VariableMetrics("embedding", full_name("ps:0"), 4 * MB, "embedding/read")
    master = dataclasses.replace(metrics("worker:2", 12), variables=(known,))
    (ps,) = job_rates([metrics("ps:0", 10, 832.0)], [metrics("ps:0", 12, 832.0), master]).tasks
    assert ps.hot is not None
    assert (ps.hot.name, ps.hot.share) == ("embedding", pytest.approx(0.9))


def test_a_job_that_is_even_or_idle_or_alone_is_in_balance() -> None:
    def rates(**out_mb: float) -> JobRates:
        names = {name: f"ps:{i}" for i, name in enumerate(out_mb)}
        return job_rates(*([metrics(names[n], s, mb) for n, mb in out_mb.items()] for s in (1, 2)))

    assert rates(a=100.0, b=120.0, c=90.0).imbalances == ()
    assert rates(a=0.001, b=0.0, c=0.0).imbalances == ()
    assert rates(a=100.0).imbalances == ()
    assert find_imbalances([]) == []


def in_cluster(cluster: str, tasks: list[TaskMetrics]) -> list[TaskMetrics]:
    """The same tasks as processes of another job on the host."""

    def moved(task: TaskMetrics) -> TaskMetrics:
        pid = task.process.pid + 1000 * ord(cluster[0])
        return dataclasses.replace(
            task,
            tasks=(dataclasses.replace(task.tasks[0], cluster=cluster),),
            process=dataclasses.replace(task.process, pid=pid),
        )

    return [moved(task) for task in tasks]


def test_two_jobs_of_one_user_are_told_apart() -> None:
    def even(seconds: float) -> list[TaskMetrics]:
        return [metrics(f"ps:{i}", seconds, 90.0) for i in range(3)]

    looks = [[*in_cluster("a:1", job(s)), *in_cluster("b:1", even(s))] for s in (10, 12)]
    rates = job_rates(*looks)
    assert {(each.task, each.cluster) for each in rates.imbalances} == {("ps:0", "a:1")}
    assert [task.task for task in rates.tasks if task.cluster == "b:1"] == ["ps:0", "ps:1", "ps:2"]
    console = Console(file=io.StringIO(), width=110, highlight=False, record=True)
    console.print(screen(rates, 1.0, console.width))
    first, second = console.export_text().split("cluster of the ps at ")[1:]
    assert first.startswith("a:1") and "\u25b2 ps:0 moves 83% of the bytes" in first
    assert second.startswith("b:1") and "\u25b2" not in second


def test_tasks_of_one_job_that_call_its_ps_differently_stay_together() -> None:
    ps, *others = job(12)
    both = [*in_cluster("0.0.0.0:1", [ps]), *in_cluster("host:1", others)]
    assert list(by_cluster(both)) == [""]


def test_the_screen_is_as_it_was() -> None:
    console = Console(file=io.StringIO(), width=110, highlight=False, record=True)
    console.print(screen(RATES, 1.0, console.width))
    shown = "".join(f"{line.rstrip()}\n" for line in console.export_text().splitlines())
    snapshot = SNAPSHOTS / "top.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.write_text(shown)
    assert shown == snapshot.read_text()


@pytest.mark.parametrize(
    ("width", "hidden"),
    [
        (40, {"pid", "wire", "reactor", "requests", "memory", "waiting"}),
        (60, {"pid", "wire", "reactor"}),
        (78, set()),
    ],
)
def test_a_narrow_terminal_has_the_columns_that_fit_and_names_the_others(
    width: int, hidden: set[str]
) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False, record=True)
    console.print(screen(RATES, 1.0, console.width))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert all(cell_len(line) <= width for line in lines)
    (header,) = [line.split() for line in lines if line.startswith("task ")]
    everything = {"pid", "CPU", "memory", "in", "out", "requests", "waiting", "wire", "reactor"}
    assert {"CPU", "in", "out"} <= set(header)
    assert everything - set(header) == hidden
    (first,) = [line for line in lines if line.startswith("ps:0")]
    assert "\u25b2 155%" in first and "\u25b2 832 MB/s" in first
    text = " ".join(lines)
    assert all(name in text.partition("not shown, terminal too narrow: ")[2] for name in hidden)


# --- the command ---------------------------------------------------------------------------------

TASK = """if True:
    import sys, time
    sys.path.insert(0, {folder!r})
    from test_top import metrics
    from tensorwire.metrics import endpoint, observed_job
    began = time.monotonic()
    def now():
        return metrics("ps:0", 1 + time.monotonic() - began, 50.0)
    address = endpoint.serve(now, "0").address
    observed_job.announce(address)
    print(address, flush=True)
    time.sleep(100)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runtime"
    monkeypatch.setenv(observed_job.FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def task() -> Iterator[str]:
    """A process that serves the metrics of a busy ps; its address."""
    code = TASK.format(folder=str(Path(__file__).parent))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_task_of_this_host_is_found_by_itself(tensorwire: Any, task: str) -> None:
    done = tensorwire("top", "--once", "--output", "json", "--interval", "0.2")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    (found,) = record["tasks"]
    assert found["task"] == "ps:0"
    assert found["out_bytes_per_s"] == pytest.approx(50 * MB, rel=0.01)
    assert record["imbalances"] == []
    assert record["unreachable"] == {}


def test_tasks_may_be_named_and_one_that_does_not_answer_is_said(
    tensorwire: Any, task: str
) -> None:
    done = tensorwire("top", "--endpoints", f"{task},127.0.0.1:1", "--interval", "0.2")
    assert done.returncode == 0, done.stderr
    assert "ps:0" in done.stdout
    assert "no metrics from 127.0.0.1:1: Connection refused" in done.stdout
    assert task not in done.stdout


def read_until(terminal: int, text: str, timeout_s: float = 60.0) -> str:
    """The output of the program up to `text`."""
    shown = ""
    deadline = time.monotonic() + timeout_s
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 1 << 16).decode(errors="replace")
    return shown


def test_on_a_terminal_it_is_live_and_ctrl_c_ends_it_cleanly(task: str) -> None:
    near, far = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-m", "tensorwire.cli.main", "top", "--interval", "0.1"],
        stdin=far,
        stdout=far,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(far)
        try:
            shown = read_until(near, "ps:0")
            shown += read_until(near, "ps:0")  # the next update
            process.send_signal(signal.SIGINT)
            shown += read_until(near, "\x1b[?1049l")  # leaves the alternate screen
            assert process.wait(30) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
        finally:
            process.kill()
            os.close(near)
    assert "\x1b[?1049h" in shown
    assert "\x1b[?25h" in shown  # the cursor is visible again
