"""The hosts on which the tasks of an experiment run: this machine, or the hosts of a lab."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tensorwire.bench.frame.record import LabDocument
from tensorwire.bench.lab import Host, Lab, LabSettings, LocalCluster
from tensorwire.bench.lab.hosts import LOOPBACK
from tensorwire.dataclass_json import from_document
from tensorwire.errors import UsageError

SERVING_JOBS = frozenset({"ps", "server", "receiver"})
"""The jobs at one end of the link; all other jobs are at the other end."""

_LAB_UNITS = (("rate_mbit_per_s", "Mbit/s"), ("delay_us", "us of delay"), ("cpus", "CPUs each"))


class HostPool:
    """The hosts of an experiment: this machine, or a running lab."""

    is_this_machine = True
    """True if all tasks can use this machine's files and programs, as in a lab."""
    settings: Mapping[str, int] = MappingProxyType({})
    """What another host chooses for its tasks."""

    def __init__(self, lab: Lab | None = None) -> None:
        self._lab = lab

    @property
    def have_link(self) -> bool:
        """True if the traffic between the ends crosses a link."""
        return self._lab is not None and self._lab.has_network

    @property
    def notes(self) -> list[str]:
        """Facts about these hosts for the user that the record does not contain."""
        return []

    @property
    def document(self) -> LabDocument | None:
        """The lab for a record; None without a lab."""
        if self._lab is None:
            return None
        made = {"network": self._lab.has_network, "notes": self._lab.notes}
        return from_document(LabDocument, {**self._lab.settings.document(), **made})

    def cluster(self, jobs: Mapping[str, int]) -> LocalCluster:
        """A cluster with these numbers of tasks. The two ends of a link are on different hosts."""
        hosts = (LOOPBACK,) if self._lab is None else self._lab.hosts
        return LocalCluster(jobs, spread(hosts, jobs))


THIS_MACHINE = HostPool()


@contextlib.contextmanager
def open_host_pool(settings: LabSettings | None) -> Iterator[HostPool]:
    """The hosts of a new lab with these settings, or this machine.

    Raises:
        UsageError: this machine cannot make hosts with these links and CPUs.
    """
    if settings is None:
        yield THIS_MACHINE
        return
    with Lab(settings) as lab:
        if lab.unmet:
            raise UsageError(
                f"this machine cannot make the lab of --lab: {'; '.join(lab.unmet)}. "
                "Without --lab, loopback is measured",
                page="docs/lab.md",
            )
        yield HostPool(lab)


def spread(hosts: Sequence[Host], jobs: Mapping[str, int]) -> dict[str, list[Host]]:
    """The host of each task. With two or more hosts, no host has tasks of both ends.

    Each end gets hosts in proportion to its tasks, and uses them in turn.
    """
    serving = sum(count for job, count in jobs.items() if job in SERVING_JOBS)
    share = round(len(hosts) * serving / sum(jobs.values()))
    share = max(1, min(share, len(hosts) - 1))
    ends = {True: hosts[:share], False: hosts[share:] or hosts}
    dealt = {True: 0, False: 0}
    placed: dict[str, list[Host]] = {}
    for job, count in jobs.items():
        end = job in SERVING_JOBS
        first = dealt[end]
        placed[job] = [ends[end][(first + i) % len(ends[end])] for i in range(count)]
        dealt[end] += count
    return placed


def link_mb_per_s(lab: LabDocument | None) -> float | None:
    """The slowest link of a lab; None if no link has a rate."""
    rates = lab["rate_mbit_per_s"] if lab is not None and lab["network"] else None
    of_hosts = rates if isinstance(rates, list) else [rates]
    return min((rate / 8 for rate in of_hosts if rate is not None), default=None)


def lab_notes(lab: LabDocument | None) -> list[str]:
    """The hosts of the lab, and settings that could not be applied; empty without a lab."""
    if lab is None:
        return []
    words = [f"{lab['hosts']} hosts"]
    for name, unit in _LAB_UNITS:
        of_all = lab[name]  # type: ignore[literal-required]
        if isinstance(of_all, list):
            words.append(
                "/".join("-" if one is None else f"{one:g}" for one in of_all) + f" {unit}"
            )
        elif of_all:
            words.append(f"{of_all:g} {unit}")
    where = f"measured between the hosts of a lab: {', '.join(words)}"
    return [*([where] if lab["network"] else []), *lab["notes"]]
