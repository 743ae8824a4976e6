"""A cluster as people ask for it: so many tasks, a layout, and what each machine has."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwire.errors import UsageError
from tensorwire.lab.network import BURST_BYTES
from tensorwire.plan.cluster import COLOCATED, ISOLATED, Cluster
from tensorwire.units import RATE_EXAMPLE, parse_rate, rate_text

ONE_MACHINE = "one-machine"
SCENARIOS = (COLOCATED, ISOLATED)
"""Of the published test."""
LAYOUTS = (*SCENARIOS, ONE_MACHINE)


@dataclass(frozen=True)
class Shape:
    """What `cluster` makes a cluster of."""

    workers: int
    ps: int
    layout: str = ISOLATED
    """COLOCATED: each machine has a ps and an equal share of the workers. ISOLATED: a machine for
    each ps, others for workers. ONE_MACHINE: a lab, each task with a link of its own."""
    cores: float = 16.0
    """Of each machine."""
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
            link_burst_bytes=BURST_BYTES,
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
    """As `link_bytes_per_s` reads it."""
    return "none" if rate_bytes_per_s is None else rate_text(rate_bytes_per_s * 8)
