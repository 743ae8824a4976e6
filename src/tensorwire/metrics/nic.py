"""The traffic of network interfaces: bytes per second in and out, and the share of their speed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tensorwire.errors import UsageError

_SYSFS = Path("/sys/class/net")


@dataclass(frozen=True)
class NicRate:
    """One interface over one interval."""

    interface: str
    seconds: float
    in_bytes: int
    out_bytes: int
    mbit_per_s: int | None
    """Nominal speed of the link; None if the kernel reports none (loopback, most virtual links)."""

    @property
    def in_kb_per_s(self) -> float:
        """KB (10^3 bytes) a second."""
        return self.in_bytes / 1e3 / self.seconds

    @property
    def out_kb_per_s(self) -> float:
        """KB (10^3 bytes) a second."""
        return self.out_bytes / 1e3 / self.seconds

    @property
    def share(self) -> float | None:
        """Share of the nominal speed in the busier direction: 1.0 is a full link."""
        if self.mbit_per_s is None:
            return None
        return max(self.in_kb_per_s, self.out_kb_per_s) * 8e3 / (self.mbit_per_s * 1e6)


def nominal_mbit_per_s(interface: str) -> int | None:
    """The link's speed in Mbit/s, or None if the kernel reports none."""
    try:
        speed = int((_SYSFS / interface / "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


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


class Watch:
    """Counts the traffic of interfaces since its creation."""

    def __init__(self, interfaces: Sequence[str]) -> None:
        self._interfaces = list(interfaces)
        self._begun = self._last = self._look()

    def _look(self) -> tuple[float, dict[str, tuple[int, int]]]:
        counters = psutil.net_io_counters(pernic=True)
        # The counters of an interface that disappears, such as a container's, restart at zero.
        moved = {
            name: (counters[name].bytes_recv, counters[name].bytes_sent)
            for name in self._interfaces
            if name in counters
        }
        return time.monotonic(), moved

    def intervals(self, seconds: float) -> Iterator[list[NicRate]]:
        """Yields the rates since the last yield every `seconds`, without end."""
        due = self._last[0]
        while True:
            due += seconds
            time.sleep(max(0.0, due - time.monotonic()))
            now = self._look()
            yield self._rates(self._last, now)
            self._last = now

    def averages(self) -> list[NicRate]:
        """The mean rates of each interface since the creation of this object."""
        return self._rates(self._begun, self._look())

    def _rates(
        self,
        before: tuple[float, dict[str, tuple[int, int]]],
        after: tuple[float, dict[str, tuple[int, int]]],
    ) -> list[NicRate]:
        seconds = max(after[0] - before[0], 1e-9)
        rates = []
        for name in self._interfaces:
            old, new = before[1].get(name), after[1].get(name)
            if new is None:
                continue
            base = old if old is not None and old[0] <= new[0] and old[1] <= new[1] else (0, 0)
            rates.append(
                NicRate(name, seconds, new[0] - base[0], new[1] - base[1], nominal_mbit_per_s(name))
            )
        return rates
