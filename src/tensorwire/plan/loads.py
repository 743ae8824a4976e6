"""The load that one worker's step puts on each ps, by the placement of the variables."""

from __future__ import annotations

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorwire.placement.plan import PlacementPlan
from tensorwire.placement.traffic import Traffic, row_bounds
from tensorwire.plan.cluster import Shape
from tensorwire.plan.costs import Costs
from tensorwire.plan.job import NOTHING, JobModel, JobVariable, Transfer

ALIKE = 0.1
"""Loads that differ by less count as equal where there are too many to tell apart."""


@dataclass(frozen=True)
class PsLoad:
    """Load of one ps in one step of one worker."""

    asked: Transfer = NOTHING
    pulled: Transfer = NOTHING
    pushed: Transfer = NOTHING
    cpu_s: float = 0.0
    """CPU time of its own operations."""

    @property
    def takes_part(self) -> bool:
        """A ps without a variable gets no part of a step."""
        return bool(self.cpu_s or self.tensors)

    @property
    def tensors(self) -> float:
        return self.asked.tensors + self.pulled.tensors + self.pushed.tensors

    @property
    def bytes(self) -> float:
        return self.asked.bytes + self.pulled.bytes + self.pushed.bytes

    def __add__(self, other: PsLoad) -> PsLoad:
        return PsLoad(
            self.asked + other.asked,
            self.pulled + other.pulled,
            self.pushed + other.pushed,
            self.cpu_s + other.cpu_s,
        )

    def times(self, factor: float) -> PsLoad:
        return PsLoad(
            self.asked.times(factor),
            self.pulled.times(factor),
            self.pushed.times(factor),
            self.cpu_s * factor,
        )

    def pull_cpu_s(self, costs: Costs) -> float:
        """CPU time of the ps until its tensors are sent: half of its operations are look-ups."""
        return (
            costs.request_ps_cpu_s
            + receiving_s(self.asked, costs)
            + sending_s(self.pulled, costs)
            + self.cpu_s / 2
        )

    def push_cpu_s(self, costs: Costs) -> float:
        """CPU time of the ps from the first gradient to the last update."""
        return receiving_s(self.pushed, costs) + self.cpu_s / 2


def sending_s(transfer: Transfer, costs: Costs) -> float:
    """CPU of who sends."""
    return transfer.tensors * costs.tensor_send_cpu_s + transfer.bytes * costs.byte_send_cpu_s


def receiving_s(transfer: Transfer, costs: Costs) -> float:
    """CPU of who receives."""
    return transfer.tensors * costs.tensor_receive_cpu_s + transfer.bytes * costs.byte_receive_cpu_s


def traffic_of(job: JobModel) -> Traffic:
    """The traffic that placement weighs by."""
    return Traffic(
        {
            each.variable.name: each.asked.bytes + each.pulled.bytes + each.pushed.bytes
            for each in job.variables
        }
    )


def loads(job: JobModel, plan: PlacementPlan) -> list[PsLoad]:
    """Loads of each ps of the plan, which has the job's variables."""
    of_ps = [PsLoad()] * plan.ps
    for variable in job.variables:
        tasks = plan.tasks[variable.variable.name]
        for task, part in zip(tasks, _parts(variable, len(tasks)), strict=True):
            of_ps[task] = of_ps[task] + part
    return of_ps


def _parts(variable: JobVariable, parts: int) -> list[PsLoad]:
    whole = PsLoad(variable.asked, variable.pulled, variable.pushed, variable.ps_cpu_s)
    if parts == 1:
        return [whole]
    rows = variable.variable.rows
    return [_part(whole, (end - first) / rows) for first, end in row_bounds(rows, parts)]


def _part(whole: PsLoad, share: float) -> PsLoad:
    """A share of the bytes and the work, with as many tensors as the whole."""

    def part(transfer: Transfer) -> Transfer:
        return Transfer(transfer.tensors, transfer.bytes * share)

    return PsLoad(part(whole.asked), part(whole.pulled), part(whole.pushed), whole.cpu_s * share)


def alike(of_ps: Sequence[PsLoad], costs: Costs, most: int) -> list[PsLoad]:
    """The same loads, made equal where they nearly are, with at most `most` different ones.

    The hottest keep their place: a step waits for the slowest ps.
    """
    if len(set(of_ps)) <= most:
        return list(of_ps)
    weights = [each.pull_cpu_s(costs) + each.push_cpu_s(costs) for each in of_ps]
    order = sorted(range(len(of_ps)), key=lambda ps: (-weights[ps], -of_ps[ps].bytes, ps))
    groups: list[list[int]] = []
    for ps in order:
        first = groups[-1][0] if groups else None
        near = first is not None and all(
            abs(a - b) <= ALIKE * max(abs(a), abs(b))
            for a, b in ((weights[ps], weights[first]), (of_ps[ps].bytes, of_ps[first].bytes))
        )
        if near or (len(groups) == most and of_ps[ps].takes_part):
            groups[-1].append(ps)
        else:
            groups.append([ps])
    made = list(of_ps)
    for group in groups:
        mean = total(of_ps[ps] for ps in group).times(1 / len(group))
        for ps in group:
            made[ps] = mean
    return made


def total(each: Iterable[PsLoad]) -> PsLoad:
    """Load of several ps together."""
    return functools.reduce(operator.add, each, PsLoad())


MOST_REQUESTS = 600
"""Workers times ps up to which each machine is simulated by itself."""
MOST_CLASSES = 4


@dataclass(frozen=True)
class PsGroup:
    """Ps that are alike; the first stands for all."""

    members: tuple[int, ...]
    load: PsLoad

    @property
    def first(self) -> int:
        return self.members[0]


@dataclass(frozen=True)
class PsGroups:
    """Groups of hosts that are alike, and the one that stands for each group."""

    classes: tuple[PsGroup, ...]
    host: tuple[int, ...]
    """The one that stands for each."""


def is_small(shape: Shape) -> bool:
    """True if each machine can be simulated by itself."""
    return shape.workers * shape.ps <= MOST_REQUESTS


def group_ps(shape: Shape, of_ps: Sequence[PsLoad]) -> PsGroups:
    """Groups the ps of a cluster, which have these loads (see `alike`)."""
    workers_on = Counter(shape.worker_hosts)
    by_key: dict[object, list[int]] = defaultdict(list)
    for ps, load in enumerate(of_ps):
        by_itself = workers_on[ps] > 0 and is_small(shape)
        by_key[load, workers_on[ps], ps if by_itself else None].append(ps)
    host_of = list(range(shape.hosts))
    for members in by_key.values():
        for ps in members:
            host_of[ps] = members[0]
    classes = tuple(
        PsGroup(tuple(members), of_ps[members[0]])
        for members in by_key.values()
        if of_ps[members[0]].takes_part
    )
    return PsGroups(classes, tuple(host_of))
