"""Which ps and machines are so alike that one stands for all.

A worker asks all ps at once, so ps of equal load on equal hosts always have the same to do: one is
simulated, and stands for its class. That is exact where no worker shares a machine with them. Where
workers do (co-located), it is what the machines are on average, and taken only for clusters that
are too large for each by itself: a worker is then on one of the machines that the one stands for,
and counts as that share of a job on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorwire.plan.cluster import Cluster
from tensorwire.plan.loads import PsLoad

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
    """Which host stands for which, and which machine for which."""

    classes: tuple[PsGroup, ...]
    host: tuple[int, ...]
    """The one that stands for each."""
    machine: tuple[int, ...]


def is_small(cluster: Cluster) -> bool:
    """Whether each machine can be simulated by itself."""
    return len(cluster.workers) * len(cluster.ps) <= MOST_REQUESTS


def group_ps(cluster: Cluster, of_ps: Sequence[PsLoad]) -> PsGroups:
    """Of a cluster whose ps have these loads (see `loads.alike`)."""
    hosts_on = [0] * len(cluster.machines)
    for host in cluster.hosts:
        hosts_on[host.machine] += 1
    workers_on, ps_on = ([0] * len(cluster.hosts) for _ in range(2))
    for host_index in cluster.workers:
        workers_on[host_index] += 1
    for host_index in cluster.ps:
        ps_on[host_index] += 1
    by_key: dict[object, list[int]] = {}
    for ps, (index, load) in enumerate(zip(cluster.ps, of_ps, strict=True)):
        host = cluster.hosts[index]
        by_itself = ps_on[index] > 1 or (workers_on[index] > 0 and is_small(cluster))
        key = (
            load,
            host.link_bytes_per_s,
            host.cores,
            cluster.machines[host.machine],
            workers_on[index],
            # Alone on its machine, or with which others.
            host.machine if hosts_on[host.machine] > 1 else None,
            index if by_itself else None,
        )
        by_key.setdefault(key, []).append(ps)
    host_of, machine_of = list(range(len(cluster.hosts))), list(range(len(cluster.machines)))
    for members in by_key.values():
        stands = cluster.ps[members[0]]
        for ps in members:
            index = cluster.ps[ps]
            host_of[index] = stands
            machine_of[cluster.hosts[index].machine] = cluster.hosts[stands].machine
    classes = tuple(
        PsGroup(tuple(members), of_ps[members[0]])
        for members in by_key.values()
        if of_ps[members[0]].takes_part
    )
    return PsGroups(classes, tuple(host_of), tuple(machine_of))
