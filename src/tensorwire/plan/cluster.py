"""Clusters as users describe them, and the hosts, links and tasks that follow."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tensorwire.errors import UsageError
from tensorwire.units import RATE_EXAMPLE, parse_rate, rate_text

LAB_BURST_BYTES = 256 << 10
"""Bytes that a link of a lab sends at once after a pause, in addition to its rate."""
COLOCATED, ISOLATED, ONE_MACHINE = "colocated", "isolated", "one-machine"
SCENARIOS = (COLOCATED, ISOLATED)
"""Layouts of the published test."""
LAYOUTS = (*SCENARIOS, ONE_MACHINE)


@dataclass(frozen=True)
class Shape:
    """A cluster: its tasks, their hosts, and the machines of these.

    Each host has a link. The first hosts have a ps each, so a ps and its host have one number.
    """

    workers: int
    ps: int
    layout: str = ISOLATED
    """COLOCATED: each machine has a ps and an equal share of the workers. ISOLATED: a machine for
    each ps, others for workers. ONE_MACHINE: a lab, each task with a link of its own."""
    cores: float = 16.0
    """Cores of each machine."""
    link_bytes_per_s: float | None = 1.25e9
    """Nominal, in each direction at once; None: as fast as need be. Tasks of one host do not use
    it between them."""
    workers_per_host: int = 1
    """ISOLATED."""
    worker_cores: float | None = None
    """Cores that one worker may use (a container's limit); None: all of its host's."""
    ps_cores: float | None = None
    ps_threads: int | None = None
    """Communication threads of a ps; None: as many as it likes."""
    latency_s: float = 0.0
    """One-way network latency between two hosts."""

    @property
    def is_lab(self) -> bool:
        """Whether all hosts share one machine."""
        return self.layout == ONE_MACHINE

    @functools.cached_property
    def worker_hosts(self) -> tuple[int, ...]:
        """The host of each worker."""
        if self.layout == COLOCATED:
            first, per_host = 0, -(-self.workers // self.ps)
        else:
            first, per_host = self.ps, 1 if self.is_lab else self.workers_per_host
        return tuple(first + worker // per_host for worker in range(self.workers))

    @property
    def hosts(self) -> int:
        return 1 + max(self.ps - 1, self.worker_hosts[-1])

    @property
    def machines(self) -> int:
        return 1 if self.is_lab else self.hosts

    @property
    def link_burst_bytes(self) -> float:
        """Bytes that each direction of a link passes at once after a pause, as queues that hold a
        rate do. It comes back at the link's rate."""
        return LAB_BURST_BYTES if self.is_lab else 0.0


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
