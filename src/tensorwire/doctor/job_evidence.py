"""Evidence from a running job: the metrics of its tasks, read twice."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from tensorwire.metrics import task_metrics as monitor
from tensorwire.metrics.observed_job import ObservedJob, fetch_all
from tensorwire.metrics.rates import by_cluster
from tensorwire.metrics.task_metrics import short_name

_POLL_S = 0.5
_WHOLE = 0.9  # of a look
_CHECKS = ("report_uninitialized_variables", "report_uninitialized_resources")
"""Prefixes of the tensors by which a worker checks that the variables are initialized."""


@dataclass(frozen=True)
class Surroundings:
    """Facts that the metrics do not contain, by host or by task."""

    links_mb_per_s: Mapping[str, float] = field(default_factory=dict)
    cpu_shares: Mapping[str, float] = field(default_factory=dict)
    """Busy share of all cores, by host."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """The host of a task, if it is not the host of its process (in a lab)."""
    cores: Mapping[str, int] = field(default_factory=dict)
    """Cores of hosts on which each task may use fewer cores, such as nodes of pods with a limit."""


def look(
    endpoints: Sequence[str], seconds: float, surroundings: Surroundings | None = None
) -> Evidence:
    """Evidence from the metrics of all tasks, read now and `seconds` later.

    Raises:
        TensorwireError: an endpoint does not answer, or the tasks belong to several jobs.
    """
    before = _read(endpoints)
    psutil.cpu_percent()
    time.sleep(seconds)
    share = psutil.cpu_percent() / 100
    after = _read(endpoints)
    given = surroundings or Surroundings()
    if not given.cpu_shares:
        given = replace(given, cpu_shares={host: share for host in _local_hosts(after, given)})
    source = f"metrics of {len(endpoints)} endpoints, read twice within {seconds:.3g} s"
    return Evidence(
        job=job_of(before, after, source, given),
        placement=placement_of(after),
        sessions=sessions_of(after, source),
    )


def wait_for_steps(job: ObservedJob, seconds: float) -> None:
    """Waits until a worker of the job completes a step, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    before: list[monitor.TaskMetrics] = []
    while True:
        now, _ = job.metrics()
        if any(worker.steps for worker in job_of(before, now, "", Surroundings()).workers):
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        before = now
        time.sleep(min(_POLL_S, left_s))


def with_link(evidence: Evidence, mb_per_s: float) -> Evidence:
    """The evidence, with `mb_per_s` as the link capacity of each host whose link is unknown."""
    if evidence.job is None:
        return evidence
    hosts = [
        replace(host, link_mb_per_s=mb_per_s) if host.link_mb_per_s is None else host
        for host in evidence.job.hosts
    ]
    return replace(evidence, job=replace(evidence.job, hosts=tuple(hosts)))


def _read(endpoints: Sequence[str]) -> list[monitor.TaskMetrics]:
    found = []
    for fetched in fetch_all(endpoints):
        if fetched.metrics is None:
            raise TensorwireError(
                f"{fetched.address} gives no metrics: {fetched.error}; start the task with "
                "TENSORWIRE_METRICS_PORT set, or leave it out of --endpoints",
                page="docs/metrics.md",
            )
        found.append(fetched.metrics)
    _check_one_job(endpoints, found)
    return found


def _check_one_job(endpoints: Sequence[str], metrics: Sequence[monitor.TaskMetrics]) -> None:
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


def _local_hosts(metrics: Sequence[monitor.TaskMetrics], given: Surroundings) -> set[str]:
    """The names of this machine among the hosts of the tasks; only its CPU load is known."""
    here = socket.gethostname()
    return {
        given.hosts.get(each.name, each.process.host)
        for each in metrics
        if each.process.host == here
    }


def job_of(
    before: Sequence[monitor.TaskMetrics],
    after: Sequence[monitor.TaskMetrics],
    source: str,
    given: Surroundings,
) -> JobEvidence:
    """The job between two looks at its tasks."""
    earlier = {each.name: each for each in before}
    host_of = {a.name: given.hosts.get(a.name, a.process.host) for a in after}
    known = [(earlier[a.name], a) for a in after if a.name in earlier]  # others just started
    tasks = [_task(b, a, host_of, _stall(b, a, after)) for b, a in known]
    fused = sum(a.fused_messages - b.fused_messages for b, a in known)
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
                cpu_share=given.cpu_shares.get(host),
                link_mb_per_s=given.links_mb_per_s.get(host),
            )
            for host, count in cores.items()
        ),
    )


def sessions_of(metrics: Sequence[monitor.TaskMetrics], source: str) -> Sessions:
    """The tasks that opened sessions without device filters."""
    return Sessions(
        source=source,
        without_device_filters=tuple(each.name for each in metrics if each.unfiltered_graphs),
    )


def placement_of(metrics: Sequence[monitor.TaskMetrics]) -> Placement | None:
    """The placement of variables in the graphs of the sessions; None if there is no such graph."""
    ps = [each.name for each in metrics if is_ps(each.name)]
    parts: dict[tuple[str, str], PlacedPart] = {}
    for variable in (each for task in metrics for each in task.variables):
        task = short_name(variable.task)
        if not is_ps(task):
            continue
        known = parts.get((task, variable.name))
        tensors = {
            *(known.tensors if known else ()),
            *([variable.tensor] if variable.tensor else []),
        }
        parts[task, variable.name] = PlacedPart(
            variable.name, int(task.partition(":")[2]), variable.bytes, tuple(sorted(tensors))
        )
    if not parts:
        return None
    highest = max(part.ps for part in parts.values())
    return Placement(
        source="the graphs that the tasks' sessions execute",
        ps=max(len(ps), highest + 1),
        parts=tuple(parts.values()),
    )


def _stall(
    before: monitor.TaskMetrics, after: monitor.TaskMetrics, job: Sequence[monitor.TaskMetrics]
) -> Stall | None:
    """The state of a worker that completed no step; None for all other tasks.

    None also for a worker that has finished, and for idle workers of a TF2 coordinator.
    """
    if after.name.partition(":")[0] not in WORKER_JOBS:
        return None
    moved = [flow for flow in _received(before, after) if not flow.name.startswith(_CHECKS)]
    counts = [(m.run_graphs, m.eager_calls, m.steps.sampled) for m in (before, after)]
    if moved or counts[0] != counts[1]:
        return None
    if after.awaited_tasks:
        return Stall(
            "no session", missing=tuple(short_name(each.task) for each in after.awaited_tasks)
        )
    waited_s = (after.recv_waiting_us - before.recv_waiting_us) / 1e6
    awaited: tuple[Awaited, ...] = ()
    if waited_s >= _WHOLE * (after.clock_us - before.clock_us) / 1e6:
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
    ever = [t.name for t in after.tensors if t.direction == monitor.IN and t.tensors]
    if not ever and not after.session_graphs:
        return Stall("no session")
    if ever and all(name.startswith(_CHECKS) for name in ever):
        return Stall("initialization")
    return Stall("between steps") if after.open_sessions else None


def _waiting(metrics: monitor.TaskMetrics) -> list[monitor.TensorMetrics]:
    """The tensors that Recvs of the task wait for now."""
    return [t for t in metrics.tensors if t.direction == monitor.IN and t.waiting]


def _task(
    before: monitor.TaskMetrics,
    after: monitor.TaskMetrics,
    host_of: Mapping[str, str],
    stall: Stall | None,
) -> TaskUsage:
    seconds = max((after.clock_us - before.clock_us) / 1e6, 1e-9)
    received = _received(before, after)
    is_worker = after.name.partition(":")[0] in WORKER_JOBS
    return TaskUsage(
        task=after.name,
        host=host_of[after.name],
        seconds=seconds,
        cpu_s=after.process.cpu_s - before.process.cpu_s,
        cores=float(after.process.cores),
        reactors=len(after.reactors),
        polling=any(task.polling for task in after.tasks),
        tx_bytes=_moved(after, "tx_bytes", host_of) - _moved(before, "tx_bytes", host_of),
        rx_bytes=_moved(after, "rx_bytes", host_of) - _moved(before, "rx_bytes", host_of),
        received=tuple(received),
        steps=_steps(received) if is_worker and stall is None else None,
        split=_sampled_split(before.steps, after.steps),
        stall=stall,
    )


def _sampled_split(before: monitor.StepTotals, after: monitor.StepTotals) -> Split | None:
    """The split that a hook of the task sampled; None if it sampled no step between the reads."""
    count = after.sampled - before.sampled
    if count <= 0:
        return None
    return Split(
        input_s=(after.input_s - before.input_s) / count,
        compute_s=(after.compute_s - before.compute_s) / count,
        ps_s=(after.ps_s - before.ps_s) / count,
        wire_s=(after.wire_s - before.wire_s) / count,
        other_s=(after.rest_s - before.rest_s) / count,
    )


def _moved(metrics: monitor.TaskMetrics, name: str, host_of: Mapping[str, str]) -> float:
    """Bytes exchanged with tasks of other hosts: traffic within a host does not use its link."""
    here = host_of[metrics.name]
    peers = [peer for peer in metrics.peers if host_of.get(short_name(peer.peer)) != here]
    return float(sum(getattr(peer, name) for peer in peers))


def _received(before: monitor.TaskMetrics, after: monitor.TaskMetrics) -> list[Flow]:
    """The tensors received between the two reads, those with the most bytes first."""
    earlier = {(t.peer, t.name): t for t in before.tensors if t.direction == monitor.IN}
    flows = []
    for now in after.tensors:
        if now.direction != monitor.IN:
            continue
        then = earlier.get((now.peer, now.name))
        tensors = now.tensors - (then.tensors if then else 0)
        if tensors:
            flows.append(
                Flow(
                    peer=short_name(now.peer),
                    name=now.name,
                    tensors=tensors,
                    bytes=now.bytes - (then.bytes if then else 0),
                    not_ready_s=(now.not_ready_us - (then.not_ready_us if then else 0)) / 1e6,
                    wire_s=(now.wire_us - (then.wire_us if then else 0)) / 1e6,
                )
            )
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
