"""The traffic of network interfaces: bytes per second in and out, and the share of their speed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from tensorwire.errors import UsageError

Reading = tuple[float, dict[str, tuple[int, int]]]
"""A time in seconds, and the bytes in and out of each interface until then."""


@dataclass(frozen=True)
class NicRate:
    """The mean rates of one interface over an interval, in KB (10^3 bytes) a second."""

    interface: str
    in_kb_per_s: float
    out_kb_per_s: float
    mbit_per_s: int | None
    """Nominal speed of the link; None if the kernel reports none (loopback, most virtual links)."""

    @property
    def share(self) -> float | None:
        """Share of the nominal speed in the busier direction: 1.0 is a full link."""
        if self.mbit_per_s is None:
            return None
        return max(self.in_kb_per_s, self.out_kb_per_s) * 8e3 / (self.mbit_per_s * 1e6)


def nominal_mbit_per_s(interface: str) -> int | None:
    """The link's speed in Mbit/s, or None if the kernel reports none."""
    stats = psutil.net_if_stats().get(interface)
    return (stats.speed or None) if stats is not None else None


def choose(wanted: Sequence[str]) -> list[str]:
    """The interfaces to watch: those named, or all that are up.

    Raises:
        UsageError: an interface of this name does not exist.
    """
    there = psutil.net_if_stats()
    for name in wanted:
        if name not in there:
            raise UsageError(f"no interface {name!r}: choose from {', '.join(sorted(there))}")
    return list(wanted) or sorted(name for name, stats in there.items() if stats.isup)


def read() -> Reading:
    counters = psutil.net_io_counters(pernic=True)
    return time.monotonic(), {n: (c.bytes_recv, c.bytes_sent) for n, c in counters.items()}


def readings(seconds: float) -> Iterator[Reading]:
    """A reading at once, and then one every `seconds`, without end."""
    due = time.monotonic()
    while True:
        yield read()
        due += seconds
        time.sleep(max(0.0, due - time.monotonic()))


def rates(interfaces: Sequence[str], before: Reading, after: Reading) -> list[NicRate]:
    """The rates between two readings; an interface that has disappeared has none."""
    kb_s = 1e3 * max(after[0] - before[0], 1e-9)
    found = []
    for name in interfaces:
        old, new = before[1].get(name, (0, 0)), after[1].get(name)
        if new is None:
            continue
        if old[0] > new[0] or old[1] > new[1]:
            old = (0, 0)  # the counters of an interface that was made again restart at zero
        into, out = ((new[i] - old[i]) / kb_s for i in (0, 1))
        found.append(NicRate(name, into, out, nominal_mbit_per_s(name)))
    return found
