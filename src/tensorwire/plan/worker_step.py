"""A worker's step as work at resources: what the simulation runs and the closed forms add up.

A step, in turn:

    start     the worker's own CPU: the step, and a request to each ps
    pull      at once: every ps answers (CPU), the links carry, the worker receives (CPU)
    compute   the worker's own operations
    push      at once: the worker sends, the links carry, every ps receives and applies

What happens at once is done when the slowest part of it is. Where tensors are sent together
(`Costs.is_fused`), none leaves before the last is there: the ps's look-ups come before the pull,
and its updates after the push.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tensorwire.plan.cluster import Shape
from tensorwire.plan.costs import Costs
from tensorwire.plan.job import JobModel, Transfer
from tensorwire.plan.loads import PsGroup, PsGroups, PsLoad, receiving_s, sending_s, total

CORES, TASK_CORES, THREADS, OUT, IN = (
    "cores",
    "container cores",
    "communication threads",
    "link out",
    "link in",
)
BOTH = "link, both ways"
LINKS = (OUT, IN)
_QUEUES = 2
"""Of the sender's link and of the receiver's."""


@dataclass(frozen=True)
class Resource:
    """A resource that work needs. Items of a step that need different resources run at once."""

    kind: str
    index: int
    """Index of the machine (CORES), host (OUT, IN) or ps (TASK_CORES, THREADS)."""
    capacity: float
    """CPU seconds, or bytes, a second."""


@dataclass(frozen=True)
class WorkItem:
    """Work at one resource; see `Station.submit`."""

    resource: Resource
    work: float
    limit: float
    weight: float = 1.0
    count: float = 1.0
    beside: Resource | None = None
    """Another at which the part of the same work takes its time that `WorkerSteps.in_turn` has."""


@dataclass(frozen=True)
class Phase:
    """Work that runs concurrently."""

    parts: tuple[WorkItem, ...]
    """Work on links and ps."""
    exchange_s: float
    """The worker's CPU for tensors."""
    own_s: float = 0.0
    """The time of the worker's own operations, which varies from step to step."""


@dataclass(frozen=True)
class WorkerStep:
    """The step of one worker."""

    start: Phase
    latency_s: float
    look_up: Phase
    """Of fused tensors: what the ps does before it sends; else empty."""
    pull: Phase
    compute: Phase
    push: Phase
    update: Phase
    """Of fused tensors: what the ps does once all have come; else empty."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.start, self.look_up, self.pull, self.compute, self.push, self.update


class WorkerSteps:
    """Steps of all workers of one job on one cluster with one side's costs."""

    def __init__(self, job: JobModel, shape: Shape, costs: Costs, groups: PsGroups) -> None:
        self.job = job
        self.shape = shape
        self.costs = costs
        self.groups = groups
        self.step = total(each.load.times(len(each.members)) for each in groups.classes)
        """All that a step of a worker asks of the ps together."""
        self.requests = sum(len(each.members) for each in groups.classes)
        self._hosts_at = Counter(groups.host)
        steps = {host: self._worker_step(host) for host in set(shape.worker_hosts)}
        self.workers = [steps[host] for host in shape.worker_hosts]
        """The step of each."""

    def burst_bytes(self, resource: Resource) -> float:
        """The bytes that a resource carries at once after a pause."""
        return self.shape.link_burst_bytes if resource.kind in LINKS else 0.0

    def in_turn(self, part: WorkItem, later: float) -> float:
        """The bytes of a transfer that share the link with those that go the other way.

        A sender hands the bursts of the two queues on its path over as one piece, which is carried
        first come, first served, so the next worker turns around sooner. Of what is longer, the
        packets of several workers alternate: these end together, and use the other direction
        together. Flow control hands over no piece; then it is `later`, all but the link's burst.
        """
        if self.costs.has_flow_control:
            return later
        return max(0.0, part.work - _QUEUES * self.burst_bytes(part.resource))

    def worker_cpu_s(self, worker: int) -> float:
        """CPU of that worker for a step."""
        return sum(each.exchange_s + each.own_s for each in self.workers[worker].phases)

    def worker_cpu(self, worker: int, phase: Phase, slower: float = 1.0) -> list[WorkItem]:
        """The worker's own part of a phase; `slower` than usual in its own operations."""
        cores = self.costs.exchange_parallelism * self.requests
        # As usual: jobs with a limit of their own each would be groups of one at their station.
        limit = _mixed(phase.exchange_s, cores, phase.own_s, self.job.worker_parallelism)
        host = self.shape.worker_hosts[worker]
        cpu_s = phase.exchange_s + phase.own_s * slower
        return self._cpu(host, cpu_s, _least(limit, self.shape.worker_cores), 1)

    def update(self) -> list[WorkItem]:
        """Synchronous training: what all ps do once for the gradients of a step together."""
        return [
            part
            for each in self.groups.classes
            for part in self._ps_cpu(each, 0.0, each.load.cpu_s / 2)
        ]

    def _worker_step(self, host: int) -> WorkerStep:
        job, costs, step = self.job, self.costs, self.step
        receive_s = receiving_s(step.pulled, costs)
        send_s = sending_s(step.pushed, costs)
        start_s = costs.step_cpu_s + self.requests * costs.request_worker_cpu_s
        at_once = costs.exchange_overlap
        beside_s = job.worker_cpu_s * job.overlap / 2
        near, pull, push, own = PsLoad(), [], [], []
        for each in self.groups.classes:
            load, own_s = each.load, each.load.cpu_s / 2
            near += load.times(self._near(host, each))
            # Of the ps's own operations, what runs while tensors are under way.
            beside = 0.0 if costs.is_fused else own_s
            pull += self._ps_cpu(each, load.pull_cpu_s(costs) - own_s, beside)
            pull += self._ps_link(host, each, OUT, load.pulled)
            pull += self._ps_link(host, each, IN, load.asked)
            push += self._ps_cpu(each, load.push_cpu_s(costs) - own_s, beside)
            push += self._ps_link(host, each, IN, load.pushed)
            own += self._ps_cpu(each, 0.0, own_s - beside)
        pull += self._own_link(host, OUT, step.asked, near.asked)
        pull += self._own_link(host, IN, step.pulled, near.pulled)
        push += self._own_link(host, OUT, step.pushed, near.pushed)
        compute_s = (1 - at_once) * (receive_s + send_s)
        return WorkerStep(
            start=Phase((), start_s + sending_s(step.asked, costs)),
            # Two messages go there and back: the request, and the tensors of either way.
            latency_s=costs.step_latency_s + 4 * self.shape.latency_s,
            look_up=Phase(tuple(own), 0.0),
            pull=Phase(tuple(pull), at_once * receive_s, beside_s),
            compute=Phase((), compute_s, job.worker_cpu_s - 2 * beside_s),
            push=Phase(tuple(push), at_once * send_s, beside_s),
            update=Phase(tuple(own), 0.0),
        )

    def _near(self, host: int, of: PsGroup) -> int:
        """The number of ps of a class on that host."""
        return sum(ps == host for ps in of.members)

    def _hosts_as(self, host: int) -> int:
        """The number of hosts that are alike, and simulated as one."""
        return self._hosts_at[self.groups.host[host]]

    def _ps_link(
        self, host: int, of: PsGroup, direction: str, transfer: Transfer
    ) -> list[WorkItem]:
        """The traffic of each ps of a class with a worker on `host`, on the ps's own link."""
        far = 1 - self._near(host, of) / len(of.members)
        return self._link(
            of.first, direction, transfer.bytes * far, 1, len(of.members) / self._hosts_as(of.first)
        )

    def _own_link(
        self, host: int, direction: str, of_step: Transfer, of_near: Transfer
    ) -> list[WorkItem]:
        """The traffic of a worker on `host`, but for the ps that are near, on its own link."""
        flows = self.requests - sum(self._near(host, each) for each in self.groups.classes)
        size, count = of_step.bytes - of_near.bytes, 1 / self._hosts_as(host)
        return self._link(host, direction, size, flows, count)

    def _link(
        self, host: int, direction: str, size: float, flows: int, count: float
    ) -> list[WorkItem]:
        """`count` bundles of so many flows, each bundle of `size` bytes."""
        rate = self.shape.link_bytes_per_s
        if size <= 0 or rate is None:
            return []
        capacity = rate * self.costs.link_share
        at = self.groups.host[host]
        share = self.costs.both_ways_share(rate)
        # A step of one worker goes one way after the other; those of several meet at a ps.
        is_shared = share < 1.0 and host < self.shape.ps
        both = Resource(BOTH, at, 2 * share * capacity) if is_shared else None
        return [WorkItem(Resource(direction, at, capacity), size, capacity, flows, count, both)]

    def _ps_cpu(self, of: PsGroup, exchange_s: float, own_s: float) -> list[WorkItem]:
        """CPU work of every ps of a class for one worker."""
        shape, costs, job = self.shape, self.costs, self.job
        cores = _mixed(exchange_s, costs.exchange_parallelism, own_s, job.ps_parallelism)
        cpu_s = exchange_s + own_s
        parts = self._cpu(of.first, cpu_s, _least(cores, shape.ps_cores), len(of.members))
        # What all workers together may have of one ps; each of the class has its own.
        if shape.ps_cores is not None and cpu_s > 0:
            resource = Resource(TASK_CORES, of.first, shape.ps_cores)
            parts.append(WorkItem(resource, cpu_s, min(cores, shape.ps_cores)))
        if shape.ps_threads is not None and exchange_s > 0:
            limit = min(costs.exchange_parallelism, shape.ps_threads)
            resource = Resource(THREADS, of.first, float(shape.ps_threads))
            parts.append(WorkItem(resource, exchange_s, limit))
        return parts

    def _cpu(self, host: int, cpu_s: float, cores: float, tasks: int) -> list[WorkItem]:
        """CPU work of `tasks` equal tasks on hosts like this one."""
        if cpu_s <= 0:
            return []
        capacity = self.shape.cores
        if self.shape.is_lab:
            machine, count = 0, float(tasks)
        else:
            machine, count = self.groups.host[host], tasks / self._hosts_as(host)
        return [
            WorkItem(Resource(CORES, machine, capacity), cpu_s, min(cores, capacity), 1.0, count)
        ]


def _least(cores: float, limit: float | None) -> float:
    return cores if limit is None else min(cores, limit)


def _mixed(first_s: float, first_cores: float, second_s: float, second_cores: float) -> float:
    """Cores that two works keep busy on average when one follows the other."""
    both_s = first_s + second_s
    return both_s / (first_s / first_cores + second_s / second_cores) if both_s > 0 else 1.0
