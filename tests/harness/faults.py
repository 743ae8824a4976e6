"""Jobs with one fault each, to test that the doctor finds it.

They train nothing. A step reads every variable, waits for its input, computes, and adds a gradient
to every variable, in configurable amounts. A worker computes on its cores, or simulates an
accelerator, which leaves its cores idle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.fault_task import FaultWorker, Table, Work
from tensorwire.bench.experiments.tensors import ServerTask
from tensorwire.bench.frame.tasks import TaskProcesses, Watcher
from tensorwire.bench.lab import HostSettings, Lab, LabSettings, LocalCluster, TaskProcess
from tensorwire.bench.lab.channel import Message
from tensorwire.errors import TensorwireError

_ANSWER_TIMEOUT_S = 120.0
_ENDPOINT_TIMEOUT_S = 60.0
_TESTS = Path(__file__).parents[1]
_LINK = 10e9  # bits a second
_FAST = HostSettings(rate_bits_per_s=_LINK)
_POLL_S = 0.1


@dataclass(frozen=True)
class FaultJob:
    """A job, and the rule that should report it (None for the healthy job)."""

    name: str
    expects: str | None
    tables: Sequence[Table]
    ps: int = 2
    workers: int = 2
    fewer_workers: int | None = None
    """The number of workers of a first look, to measure the effect of more workers."""
    protocol: str = "grpc++"
    work: Work = field(default_factory=Work)
    slow_worker: Work | None = None
    """The work of the last worker."""
    ps_matmuls: int = 0
    """Products of 256 x 256 matrices on the ps for each variable that is read."""
    ps_host: HostSettings = _FAST
    """The host of each ps; each task is on its own host."""
    worker_host: HostSettings = _FAST
    filters: bool = True
    hook_every: int = 0
    """Interval of steps that a hook of the workers splits; 0: no hook."""
    environment: Mapping[str, str] = field(default_factory=dict)


def _even(count: int, kb: float, ps: int = 2) -> tuple[Table, ...]:
    return tuple(Table(f"table{i}", kb, i % ps) for i in range(count))


def _all_on_first(count: int, kb: float) -> tuple[Table, ...]:
    return tuple(Table(f"table{i}", kb, 0) for i in range(count))


_TABLES = _even(8, 200)
_POLLING = {"PS_ENABLE_POLLING": "True", "WORKER_ENABLE_POLLING": "True"}

JOBS: tuple[FaultJob, ...] = (
    FaultJob("healthy", None, _TABLES),
    FaultJob("variables on one ps", "hot-ps", _all_on_first(12, 1000), work=Work(device_ms=4)),
    FaultJob(
        "one big variable",
        "big-variable",
        (Table("embedding", 12_000, 0), *_even(8, 100)),
        work=Work(device_ms=4),
    ),
    FaultJob("200 small variables", "small-tensors", _even(200, 1)),
    FaultJob(
        "slow link",
        "link-saturated",
        _TABLES,
        workers=1,
        ps_host=HostSettings(rate_bits_per_s=200e6),
        worker_host=HostSettings(rate_bits_per_s=200e6),
    ),
    FaultJob(
        "stock grpc",
        "rpc-below-link",
        _TABLES,
        protocol="grpc",
        ps_host=HostSettings(),
        worker_host=HostSettings(),
    ),
    FaultJob(
        "slow ps",
        "ps-cpu-bound",
        _even(4, 100),
        workers=1,
        work=Work(device_ms=2),
        ps_matmuls=20,
        ps_host=HostSettings(rate_bits_per_s=_LINK, cpus=0.2),
    ),
    FaultJob("slow workers", "worker-compute-bound", _TABLES, work=Work(device_ms=80)),
    FaultJob(
        "workers at their CPU limit",
        "worker-compute-bound",
        _TABLES,
        work=Work(matmuls=20),
        worker_host=HostSettings(rate_bits_per_s=_LINK, cpus=0.3),
    ),
    FaultJob("a worker that waits", "no-step", _TABLES, slow_worker=Work(is_stuck=True)),
    FaultJob("slow input", "input-bound", _TABLES, work=Work(input_ms=40), hook_every=10),
    FaultJob(
        "one slow worker",
        "straggler",
        _TABLES,
        workers=3,
        slow_worker=Work(device_ms=60),
    ),
    FaultJob("polling on few cores", "polling-crowded", _TABLES, environment=_POLLING),
    FaultJob(
        "many communication threads",
        "threads-over-cores",
        _TABLES,
        environment={"NETWORK_PS_CORE_NUMBER": "16"},
    ),
    FaultJob(
        "too many workers",
        "workers-past-saturation",
        _even(1, 40, 1),
        ps=1,
        workers=6,
        fewer_workers=2,
        work=Work(device_ms=20),
        ps_matmuls=30,
        ps_host=HostSettings(rate_bits_per_s=_LINK, cpus=0.4),
    ),
    FaultJob("no device filters", "no-device-filters", _TABLES, filters=False),
)


@dataclass(frozen=True)
class RunningJob:
    """A job that takes steps until its context ends."""

    job: FaultJob
    tensorflow: str
    endpoints: Sequence[str]
    """Addresses of all tasks' metrics; empty on stock grpc."""
    hosts: Mapping[str, str]
    """Hosts by the task's name, "ps:0"."""
    links_mb_per_s: Mapping[str, float]
    """Capacities of links by host."""
    notes: Sequence[str]
    """The faults of the job that this machine cannot create."""


@contextlib.contextmanager
def running(job: FaultJob, watcher: Watcher) -> Iterator[RunningJob]:
    """The job, while its workers take steps.

    Raises:
        TensorwireError: a task failed, or did not start in time.
    """
    with contextlib.ExitStack() as stack:
        watcher.activity(f"starting {job.name}")
        settings = (*[job.ps_host] * job.ps, *[job.worker_host] * job.workers)
        lab = stack.enter_context(Lab(LabSettings(settings)))
        hosts = {"ps": lab.hosts[: job.ps], "worker": lab.hosts[job.ps :]}
        counts = {"ps": job.ps, "worker": job.workers}
        cluster = LocalCluster(counts, hosts)
        tasks = stack.enter_context(TaskProcesses(cluster))
        sockets = cluster.directory / "figures"
        sockets.mkdir()
        for name, count in counts.items():
            for index in range(count):
                _start(tasks, job, name, index, str(sockets))
        tasks.wait_started(watcher)
        workers = [name for name in tasks.processes if name.startswith("worker")]
        for worker in workers:  # the first worker's session initializes the variables
            tasks.ask(worker, "open", _ANSWER_TIMEOUT_S)
        tasks.ask_all(workers, "train", _ANSWER_TIMEOUT_S)
        endpoints = []
        if job.protocol == "grpc++":
            endpoints = [_endpoint(cluster, task, str(sockets)) for task in cluster.tasks]
        watcher.activity(f"looking at {job.name}")
        yield RunningJob(
            job=job,
            tensorflow=tasks.tensorflow or "",
            endpoints=endpoints,
            hosts={task.name: cluster.host(task.job, task.index).name for task in cluster.tasks},
            links_mb_per_s={
                host.name: each.rate_bits_per_s / 8e6
                for host, each in zip(lab.hosts, settings, strict=True)
                if each.rate_bits_per_s and lab.has_network
            },
            notes=lab.notes,
        )
        cluster.check()


def _start(tasks: TaskProcesses, job: FaultJob, name: str, index: int, sockets: str) -> None:
    slow = job.slow_worker if (name, index) == ("worker", job.workers - 1) else None
    setup: Message = {
        "spec": tasks.cluster.spec,
        "job": name,
        "index": index,
        "protocol": job.protocol,
    }
    if name == "worker":
        setup |= {
            "tables": [dataclasses.asdict(table) for table in job.tables],
            "work": dataclasses.asdict(slow or job.work),
            "ps_matmuls": job.ps_matmuls,
            "filters": job.filters,
            "hook_every": job.hook_every,
        }
    tasks.start_task(
        f"{name}:{index}",
        FaultWorker if name == "worker" else ServerTask,
        {
            "CUDA_VISIBLE_DEVICES": "-1",
            # The job stands for one on several machines, so no shared memory.
            "TENSORWIRE_TRANSPORT": "tcp",
            "TENSORWIRE_METRICS": f"unix:{sockets}/{name}-{index}.sock",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")])
            ),
            **job.environment,
        },
        **setup,
    )


def _endpoint(cluster: LocalCluster, task: TaskProcess, sockets: str) -> str:
    path = Path(sockets, f"{task.job}-{task.index}.sock")
    deadline = time.monotonic() + _ENDPOINT_TIMEOUT_S
    while not path.exists():
        cluster.check()
        if time.monotonic() > deadline:
            raise TensorwireError(f"{task.name} serves no metrics at {path}")
        time.sleep(_POLL_S)
    return f"unix:{path}"
