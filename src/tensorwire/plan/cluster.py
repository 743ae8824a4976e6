"""Clusters as users describe them, and the hosts, links and tasks that follow."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwire.errors import UsageError
from tensorwire.units import RATE_EXAMPLE, parse_rate, rate_text

LAB_BURST_BYTES = 256 << 10
"""Bytes that a link of a lab sends at once after a pause, in addition to its rate."""
COLOCATED, ISOLATED, ONE_MACHINE = "colocated", "isolated", "one-machine"


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
    layout: str = "custom"
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
        """The tasks on their hosts: the ps on the first, one each."""
        is_lab = self.layout == ONE_MACHINE
        if self.layout == COLOCATED:
            first, per_host = 0, -(-self.workers // self.ps)
        else:
            first, per_host = self.ps, 1 if is_lab else self.workers_per_host
        workers = tuple(first + worker // per_host for worker in range(self.workers))
        hosts = range(1 + max(self.ps - 1, workers[-1]))
        return Cluster(
            machines=(self.cores,) * (1 if is_lab else len(hosts)),
            hosts=tuple(ClusterHost(0 if is_lab else n, self.link_bytes_per_s) for n in hosts),
            workers=workers,
            ps=tuple(range(self.ps)),
            layout=self.layout,
            worker_cores=self.worker_cores,
            ps_cores=self.ps_cores,
            ps_threads=self.ps_threads,
            latency_s=self.latency_s,
            link_burst_bytes=LAB_BURST_BYTES if is_lab else 0.0,
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
