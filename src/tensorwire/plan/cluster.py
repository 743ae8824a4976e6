"""Clusters as users describe them, and the hosts, links and tasks that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.errors import UsageError
from tensorwire.units import RATE_EXAMPLE, parse_rate, rate_text

LAB_BURST_BYTES = 256 << 10
"""Bytes that a link of a lab sends at once after a pause, in addition to its rate."""
COLOCATED, ISOLATED, CUSTOM = "colocated", "isolated", "custom"


@dataclass(frozen=True)
class ClusterHost:
    """An end of a link. Usually one on each machine; the hosts of a lab share one machine."""

    machine: int
    """Index of the machine whose cores it uses."""
    link_bytes_per_s: float | None = None
    """Nominal, in each direction at once; None: as fast as need be. Tasks of one host do not use
    it between them."""


@dataclass(frozen=True)
class Cluster:
    """Tasks on hosts on machines."""

    machines: tuple[float, ...]
    """Cores of each."""
    hosts: tuple[ClusterHost, ...]
    workers: tuple[int, ...]
    """The host of each worker."""
    ps: tuple[int, ...]
    """The host of each ps."""
    layout: str = CUSTOM
    worker_cores: float | None = None
    """Cores that one worker may use (a container's limit); None: all of its host's."""
    ps_cores: float | None = None
    ps_threads: int | None = None
    """Communication threads of a ps; None: as many as it likes."""
    latency_s: float = 0.0
    """One-way network latency between two hosts."""
    link_burst_bytes: float = 0.0
    """Bytes that each direction of a link passes at once after a pause, as queues that hold a rate
    do: a lab's, and those of many a cloud. It comes back at the link's rate."""

    @staticmethod
    def one_machine(
        cores: float,
        workers: Sequence[int],
        ps: Sequence[int],
        link_bytes_per_s: float | None,
        **limits: Any,
    ) -> Cluster:
        """A lab: hosts that share the cores of one machine, each with a link of its own.

        Args:
            cores: of the machine.
            workers: the host of each, by number; hosts are 0 up to the highest that is named.
            ps: likewise.
            limits: further fields of a Cluster.
        """
        count = max((*workers, *ps)) + 1
        hosts = (ClusterHost(0, link_bytes_per_s),) * count
        return Cluster((cores,), hosts, tuple(workers), tuple(ps), **limits)

    @staticmethod
    def colocated(
        workers: int, ps: int, cores: float, link_bytes_per_s: float | None, **limits: Any
    ) -> Cluster:
        """A machine for each ps, with the workers dealt out in equal blocks: scenario 1."""
        per_host = -(-workers // ps)
        return Cluster(
            (cores,) * ps,
            tuple(ClusterHost(number, link_bytes_per_s) for number in range(ps)),
            tuple(worker // per_host for worker in range(workers)),
            tuple(range(ps)),
            COLOCATED,
            **limits,
        )

    @staticmethod
    def isolated(
        workers: int,
        ps: int,
        cores: float,
        link_bytes_per_s: float | None,
        workers_per_host: int = 1,
        **limits: Any,
    ) -> Cluster:
        """A machine for each ps, and others for `workers_per_host` workers each: scenario 2."""
        of_workers = -(-workers // workers_per_host)
        return Cluster(
            (cores,) * (ps + of_workers),
            tuple(ClusterHost(number, link_bytes_per_s) for number in range(ps + of_workers)),
            tuple(ps + worker // workers_per_host for worker in range(workers)),
            tuple(range(ps)),
            ISOLATED,
            **limits,
        )


ONE_MACHINE = "one-machine"
SCENARIOS = (COLOCATED, ISOLATED)
"""Layouts of the published test."""
LAYOUTS = (*SCENARIOS, ONE_MACHINE)


@dataclass(frozen=True)
class Shape:
    """The shape of a cluster, input of `cluster`."""

    workers: int
    ps: int
    layout: str = ISOLATED
    """COLOCATED: each machine has a ps and an equal share of the workers. ISOLATED: a machine for
    each ps, others for workers. ONE_MACHINE: a lab, each task with a link of its own."""
    cores: float = 16.0
    """Cores of each machine."""
    link_bytes_per_s: float | None = 1.25e9
    workers_per_host: int = 1
    """ISOLATED."""
    worker_cores: float | None = None
    ps_cores: float | None = None
    ps_threads: int | None = None
    latency_s: float = 0.0

    def cluster(self) -> Cluster:
        """The tasks on their hosts."""
        limits = {
            "worker_cores": self.worker_cores,
            "ps_cores": self.ps_cores,
            "ps_threads": self.ps_threads,
            "latency_s": self.latency_s,
        }
        workers, ps, cores, link = self.workers, self.ps, self.cores, self.link_bytes_per_s
        if self.layout == COLOCATED:
            return Cluster.colocated(workers, ps, cores, link, **limits)
        if self.layout == ISOLATED:
            per_host = self.workers_per_host
            return Cluster.isolated(workers, ps, cores, link, per_host, **limits)
        hosts = range(ps + workers)
        return Cluster.one_machine(
            cores,
            hosts[ps:],
            hosts[:ps],
            link,
            layout=ONE_MACHINE,
            link_burst_bytes=LAB_BURST_BYTES,
            **limits,
        )


def link_bytes_per_s(text: str) -> float | None:
    """Reads "10gbit" or "500mbit"; "none" is no limit.

    Raises:
        UsageError: it is neither.
    """
    if text.lower() == "none":
        return None
    bits_per_s = parse_rate(text)
    if not bits_per_s:
        raise UsageError(f"--link {text}: write it as {RATE_EXAMPLE}, or none")
    return bits_per_s / 8


def link_text(rate_bytes_per_s: float | None) -> str:
    """Text that `link_bytes_per_s` parses."""
    return "none" if rate_bytes_per_s is None else rate_text(rate_bytes_per_s * 8)
