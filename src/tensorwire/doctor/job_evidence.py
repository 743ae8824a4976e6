"""Evidence from a running job: the metrics of its tasks, read twice."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import psutil

from tensorwire.cluster import WORKER_JOBS, is_ps
from tensorwire.doctor.evidence import (
    Awaited,
    Evidence,
    Flow,
    HostUsage,
    JobEvidence,
    PlacedPart,
    Placement,
    Sessions,
    Split,
    Stall,
    TaskUsage,
)
from tensorwire.errors import TensorwireError
from tensorwire.metrics.observed_job import ObservedJob, fetch_all
from tensorwire.metrics.rates import by_cluster
from tensorwire.metrics.task_metrics import IN, StepTotals, TaskMetrics, TensorMetrics, short_name

_POLL_S = 0.5
_WHOLE = 0.9  # of the observation
_CHECKS = ("report_uninitialized_variables", "report_uninitialized_resources")
"""Prefixes of the tensors by which a worker checks that the variables are initialized."""


@dataclass(frozen=True)
class HostFacts:
    """Facts that the metrics do not contain, by host or by task."""

    links_mb_per_s: Mapping[str, float] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    """The host of a task, if it is not the host of its process (in a lab)."""
    cores: Mapping[str, int] = field(default_factory=dict)
    """Cores of hosts on which each task may use fewer cores, such as nodes of pods with a limit."""

    def host_of(self, task: TaskMetrics) -> str:
        return self.hosts.get(task.name, task.process.host)


def observe(endpoints: Sequence[str], seconds: float, facts: HostFacts | None = None) -> Evidence:
    """Evidence from the metrics of all tasks, read now and `seconds` later.

    Raises:
        TensorwireError: an endpoint does not answer, or the tasks belong to several jobs.
    """
    before = _read(endpoints)
    psutil.cpu_percent()
    time.sleep(seconds)
    share = psutil.cpu_percent() / 100
    after = _read(endpoints)
    given = facts or HostFacts()
    source = f"metrics of {len(endpoints)} endpoints, read twice within {seconds:.3g} s"
    here = socket.gethostname()  # only the CPU load of this machine is known
    shares = {given.host_of(each): share for each in after if each.process.host == here}
    return evidence_of(before, after, source, given, shares)


def wait_for_steps(job: ObservedJob, seconds: float) -> None:
    """Waits until a worker of the job completes a step, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    before: list[TaskMetrics] = []
    while True:
        now, _ = job.metrics()
        if any(worker.steps for worker in job_of(before, now, "", HostFacts()).workers):
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        before = now
        time.sleep(min(_POLL_S, left_s))


def _read(endpoints: Sequence[str]) -> list[TaskMetrics]:
    found = []
    for fetched in fetch_all(endpoints):
        if fetched.metrics is None:
            raise TensorwireError(
                f"{fetched.address} gives no metrics: {fetched.error}; start the task on "
                "grpc++ with TENSORWIRE_METRICS=HOST:PORT, or leave it out of --endpoints",
                page="docs/metrics.md",
            )
        found.append(fetched.metrics)
    _check_one_job(endpoints, found)
    return found


def _check_one_job(endpoints: Sequence[str], metrics: Sequence[TaskMetrics]) -> None:
    clusters = by_cluster(metrics)
    if len(clusters) < 2:
        return
    where = {id(each): endpoint for endpoint, each in zip(endpoints, metrics, strict=True)}
    jobs = [
        f"{','.join(where[id(each)] for each in members)} (the ps at {cluster})"
        for cluster, members in sorted(clusters.items())
        if cluster
    ]
    raise TensorwireError(
        f"these are tasks of {len(jobs)} jobs: name the tasks of one job with --endpoints, "
        f"{' or '.join(jobs)}"
    )


def evidence_of(
    before: Sequence[TaskMetrics],
    after: Sequence[TaskMetrics],
    source: str,
    given: HostFacts,
    cpu_shares: Mapping[str, float] = MappingProxyType({}),
) -> Evidence:
    """The evidence in two readings of the metrics of all tasks.

    `cpu_shares`: the busy share of all cores, by host, where it is known.
    """
    return Evidence(
        job=job_of(before, after, source, given, cpu_shares),
        placement=_placement_of(after),
        sessions=Sessions(source, tuple(each.name for each in after if each.unfiltered_graphs)),
    )


def job_of(
    before: Sequence[TaskMetrics],
    after: Sequence[TaskMetrics],
    source: str,
    given: HostFacts,
    cpu_shares: Mapping[str, float] = MappingProxyType({}),
) -> JobEvidence:
    """The job between two readings of its tasks' metrics."""
    earlier = {each.name: each for each in before}
    host_of = {each.name: given.host_of(each) for each in after}
    known = [(a, a.since(earlier[a.name])) for a in after if a.name in earlier]
    tasks = [_task(a, moved, host_of, _stall(a, moved, after)) for a, moved in known]
    fused = sum(moved.fused_messages for _, moved in known)
    cores: dict[str, float] = {}
    for each in after:
        host = host_of[each.name]
        cores[host] = max(each.process.cores, cores.get(host, 0.0))
    cores |= given.cores
    return JobEvidence(
        source=source,
        protocol="grpc++",
        tensor_fuse=fused > 0,
        tasks=tuple(with_splits(tasks)),
        hosts=tuple(
            HostUsage(
                host=host,
                cores=count,
                cpu_share=cpu_shares.get(host),
                link_mb_per_s=given.links_mb_per_s.get(host),
            )
            for host, count in cores.items()
        ),
    )


def _placement_of(metrics: Sequence[TaskMetrics]) -> Placement | None:
    """The placement of variables in the graphs of the sessions; None if there is no such graph."""
    ps = [each.name for each in metrics if is_ps(each.name)]
    tables = {(short_name(each.task), each.name): each for task in metrics for each in task.tables}
    parts: dict[tuple[str, str], PlacedPart] = {}
    for variable in (each for task in metrics for each in task.variables):
        task = short_name(variable.task)
        if not is_ps(task):
            continue
        known = parts.get((task, variable.name))
        tensors = {*(known.tensors if known else ()), variable.tensor} - {""}
        table = tables.get((task, variable.name))
        parts[task, variable.name] = PlacedPart(
            variable.name,
            int(task.partition(":")[2]),
            variable.bytes if table is None else table.rows * table.row_bytes,
            tuple(sorted(tensors)),
            grows=table is not None,
        )
    if not parts:
        return None
    highest = max(part.ps for part in parts.values())
    return Placement(
        source="the graphs that the tasks' sessions execute",
        ps=max(len(ps), highest + 1),
        parts=tuple(parts.values()),
    )


def _stall(after: TaskMetrics, moved: TaskMetrics, job: Sequence[TaskMetrics]) -> Stall | None:
    """The state of a worker that completed no step; None for all other tasks.

    None also for a worker that has finished, and for idle workers of a TF2 coordinator.
    """
    if after.name.partition(":")[0] not in WORKER_JOBS:
        return None
    if any(not flow.name.startswith(_CHECKS) for flow in _received(moved)):
        return None
    if moved.run_graphs or moved.eager_calls or moved.steps.sampled:
        return None
    if after.awaited_tasks:
        return Stall(
            "no session", missing=tuple(short_name(each.task) for each in after.awaited_tasks)
        )
    awaited: tuple[Awaited, ...] = ()
    if moved.recv_waiting_us >= _WHOLE * moved.clock_us:
        awaited = tuple(Awaited(short_name(t.peer), t.name) for t in _waiting(after))
    from_it = tuple(
        Awaited(each.name, tensor.name)
        for each in job
        for tensor in _waiting(each)
        if short_name(tensor.peer) == after.name
    )
    if awaited and not from_it:
        return Stall("recv", awaited)
    if any(each.eager_calls for each in job):
        return None
    if after.running_graphs or from_it:
        return Stall("step", awaited, from_it)
    ever = [t.name for t in after.tensors if t.direction == IN and t.tensors]
    if not ever and not after.session_graphs:
        return Stall("no session")
    if ever and all(name.startswith(_CHECKS) for name in ever):
        return Stall("initialization")
    return Stall("between steps") if after.open_sessions else None


def _waiting(metrics: TaskMetrics) -> list[TensorMetrics]:
    """The tensors that Recvs of the task wait for now."""
    return [t for t in metrics.tensors if t.direction == IN and t.waiting]


def _task(
    after: TaskMetrics,
    moved: TaskMetrics,
    host_of: Mapping[str, str],
    stall: Stall | None,
) -> TaskUsage:
    received = _received(moved)
    is_worker = after.name.partition(":")[0] in WORKER_JOBS
    # Traffic within a host does not use its link.
    here = host_of[after.name]
    remote = [peer for peer in moved.peers if host_of.get(short_name(peer.peer)) != here]
    return TaskUsage(
        task=after.name,
        host=here,
        seconds=max(moved.clock_us / 1e6, 1e-9),
        cpu_s=moved.process.cpu_s,
        cores=float(after.process.cores),
        reactors=len(after.reactors),
        polling=any(task.polling for task in after.tasks),
        tx_bytes=float(sum(peer.tx_bytes for peer in remote)),
        rx_bytes=float(sum(peer.rx_bytes for peer in remote)),
        received=tuple(received),
        steps=_steps(received) if is_worker and stall is None else None,
        split=_sampled_split(moved.steps),
        stall=stall,
    )


def _sampled_split(steps: StepTotals) -> Split | None:
    """The mean split that a hook of the task sampled; None if it sampled no step."""
    if steps.sampled <= 0:
        return None
    sums = (steps.input_s, steps.compute_s, steps.ps_s, steps.wire_s, steps.rest_s)
    return Split(*(each / steps.sampled for each in sums))


def _received(moved: TaskMetrics) -> list[Flow]:
    """The received tensors, those with the most bytes first."""
    flows = [
        Flow(
            peer=short_name(each.peer),
            name=each.name,
            tensors=each.tensors,
            bytes=each.bytes,
            not_ready_s=each.not_ready_us / 1e6,
            wire_s=each.wire_us / 1e6,
        )
        for each in moved.tensors
        if each.direction == IN and each.tensors
    ]
    return sorted(flows, key=lambda flow: -flow.bytes)


def _steps(received: Sequence[Flow]) -> float | None:
    """The number of steps: the median of the counts of tensors received from ps.

    Nearly all tensors cross once per step. Each count is weighted by itself, because a new session
    receives many tensors only once.
    """
    counts = sorted(flow.tensors for flow in received if is_ps(flow.peer) and flow.name)
    left = sum(counts) / 2
    for count in counts:
        left -= count
        if left <= 0:
            return float(count)
    return None


def with_splits(tasks: Sequence[TaskUsage]) -> list[TaskUsage]:
    """Adds the split of its step to each worker: from its hook, or else computed from waits.

    All Recvs of a task begin with its step. So the ps's wait for a gradient lasts as long as the
    worker's wait for variables plus its own work; the difference is the worker's own time.
    """
    ps = [task for task in tasks if is_ps(task.task)]
    return [
        replace(task, split=_split(task, ps)) if task.steps and task.split is None else task
        for task in tasks
    ]


def _split(worker: TaskUsage, ps: Sequence[TaskUsage]) -> Split | None:
    """The split of a step from the waits; None if the ps receive nothing from this worker."""
    assert worker.steps is not None
    step_s = worker.seconds / worker.steps
    gradients = [flow for task in ps for flow in task.received if flow.peer == worker.task]
    gradient = max(gradients, key=_wait_s, default=None)
    if gradient is None:
        return None
    made_s = gradient.not_ready_s / gradient.tensors
    # A tensor without bytes is a control edge, mostly the signal that an update is done.
    reads = [flow for flow in worker.received if flow.bytes]
    read = max(reads, key=_wait_s, default=None)
    ps_s = read.not_ready_s / read.tensors if read else 0.0
    read_wire_s = read.wire_s / read.tensors if read else 0.0
    own_s = max(0.0, made_s - ps_s - read_wire_s)
    wire_s = read_wire_s + gradient.wire_s / gradient.tensors
    return Split(
        input_s=None,
        compute_s=own_s,
        ps_s=ps_s,
        wire_s=wire_s,
        other_s=max(0.0, step_s - own_s - ps_s - wire_s),
    )


def _wait_s(flow: Flow) -> float:
    """Mean seconds of waiting for one tensor."""
    return (flow.not_ready_s + flow.wire_s) / flow.tensors
