"""The settings of a lab's hosts, parsed from `--lab hosts=2,rate=10gbit,delay=50us`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from tensorwire.errors import UsageError
from tensorwire.units import RATE_EXAMPLE, parse_quantity, parse_rate

EXAMPLE = "hosts=2,rate=10gbit,delay=50us"
MOST_HOSTS = 64
HIGHEST_BITS_PER_S = 32e9
"""The kernel's interface has 32 bits for the bytes per second."""
_LOWEST_BITS_PER_S = 1e4
_LONGEST_DELAY_S = 10.0
# The kernel grants CPU time in slices of at least 1 ms per 100 ms.
FEWEST_CPUS = 0.01

_DELAY_UNITS = {"us": "1e-6", "ms": "1e-3", "s": "1"}


@dataclass(frozen=True)
class HostSettings:
    """The settings of one host, and of its link to the bridge that joins all hosts."""

    rate_bits_per_s: float | None = None
    """The capacity of the link in each direction; None: as fast as the machine."""
    delay_s: float = 0.0
    """Delay of packets that the host sends; a round trip has the delays of both hosts."""
    cpus: float | None = None
    """CPU seconds per second that all tasks of the host together may use; None: no limit."""
    is_cut: bool = False
    """True if the link drops all packets silently, like a cable pulled at a remote switch."""

    def __post_init__(self) -> None:
        """Raises UsageError for impossible values."""
        rate = self.rate_bits_per_s
        if rate is not None and not _LOWEST_BITS_PER_S <= rate <= HIGHEST_BITS_PER_S:
            raise UsageError("the rate of a lab's link is from 10kbit to 32gbit")
        if not 0 <= self.delay_s <= _LONGEST_DELAY_S:
            raise UsageError("the delay of a lab's link is from 0us to 10s")
        if self.cpus is not None and not FEWEST_CPUS <= self.cpus < math.inf:
            raise UsageError(f"the CPUs of a lab's host are {FEWEST_CPUS:g} or more")


@dataclass(frozen=True)
class LabSettings:
    """Every host of a lab, `host0` first."""

    hosts: tuple[HostSettings, ...]

    def __post_init__(self) -> None:
        """Raises UsageError for a wrong number of hosts."""
        if not 2 <= len(self.hosts) <= MOST_HOSTS:
            raise UsageError(f"a lab has from 2 to {MOST_HOSTS} hosts, not {len(self.hosts)}")

    @staticmethod
    def alike(hosts: int, settings: HostSettings) -> LabSettings:
        """`hosts` hosts with equal settings."""
        return LabSettings((settings,) * hosts)

    def document(self) -> dict[str, Any]:
        """The settings as JSON: one value if all hosts have the same, else one for each host."""

        def of_all(name: str, scale: float) -> Any:
            values = [
                None if (value := getattr(host, name)) is None else value * scale
                for host in self.hosts
            ]
            return values[0] if len(set(values)) == 1 else values

        return {
            "hosts": len(self.hosts),
            "rate_mbit_per_s": of_all("rate_bits_per_s", 1e-6),
            "delay_us": of_all("delay_s", 1e6),
            "cpus": of_all("cpus", 1.0),
        }


def parse(text: str) -> LabSettings:
    """Reads "hosts=2,rate=10gbit,delay=50us,cpus=1"; all but `hosts` may be left out.

    Raises:
        UsageError: a name or a value is not understood, given twice, or impossible.
    """
    given: dict[str, str] = {}
    for entry in text.split(","):
        name, equals, value = entry.strip().partition("=")
        if not equals or not value:
            raise UsageError(f"--lab: {entry.strip()!r} is not NAME=VALUE, as in {EXAMPLE}")
        if name in given:
            raise UsageError(f"--lab: {name} is given twice")
        given[name] = value
    if unknown := given.keys() - {"hosts", "rate", "delay", "cpus"}:
        raise UsageError(
            f"--lab: unknown setting {min(unknown)!r}: use hosts, rate, delay and cpus, "
            f"as in {EXAMPLE}"
        )
    if "hosts" not in given:
        raise UsageError(f"--lab: the number of hosts is missing, as in {EXAMPLE}")
    if not re.fullmatch(r"\d{1,4}", given["hosts"]):
        raise UsageError(f"--lab: hosts must be a number, not {given['hosts']!r}")
    fields: dict[str, Any] = {}
    for name, field, read, example in (
        ("rate", "rate_bits_per_s", parse_rate, RATE_EXAMPLE),
        ("delay", "delay_s", lambda said: parse_quantity(said, _DELAY_UNITS), "50us or 2ms"),
        ("cpus", "cpus", lambda said: parse_quantity(said, {"": "1"}), "1 or 0.5"),
    ):
        if (said := given.get(name)) is None:
            continue
        if (number := read(said)) is None:
            raise UsageError(f"--lab: {name}={said} is not understood: write it as {example}")
        fields[field] = number
    return LabSettings.alike(int(given["hosts"]), HostSettings(**fields))
