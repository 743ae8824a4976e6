"""The tasks of a job and their addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorwire.errors import UsageError


def split_address(address: str) -> tuple[str, int]:
    """``"host:port"`` or ``"[v6]:port"`` as (host, port), the host without brackets.

    Raises UsageError when there is no host or no port in 1..65535.
    """
    host, colon, digits = address.rpartition(":")
    port = int(digits) if digits.isascii() and digits.isdigit() else 0
    bare = host
    if host.startswith("[") and host.endswith("]"):
        bare = host[1:-1]
    elif ":" in host:
        bare = ""  # a bare IPv6 address: where it ends and the port begins is anyone's guess
    if not colon or not bare or not 1 <= port <= 65535:
        raise UsageError(f'"{address}" is not an address: write host:port, as in 127.0.0.1:2222')
    return bare, port


@dataclass(frozen=True, order=True)
class Task:
    """One process of the job, named as TensorFlow names it."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"/job:{self.job}/task:{self.index}"


@dataclass(frozen=True)
class ClusterSpec:
    """gRPC addresses by job and task index.

    Unlike TensorFlow's class of this name it needs no TensorFlow, and it knows dense jobs only.
    """

    jobs: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        seen: dict[str, Task] = {}
        for task, address in self.tasks():
            split_address(address)
            if address in seen:
                raise UsageError(f"{task} and {seen[address]} have the same address {address}")
            seen[address] = task

    def tasks(self) -> Iterator[tuple[Task, str]]:
        """Every task with its address, in the order of the jobs and then of the index."""
        for job, addresses in self.jobs.items():
            for index, address in enumerate(addresses):
                yield Task(job, index), address

    def address(self, task: Task) -> str:
        """The gRPC address of a task; UsageError when the cluster has no such task."""
        addresses = self.jobs.get(task.job, ())
        if not 0 <= task.index < len(addresses):
            known = ", ".join(f"{job} ({len(found)})" for job, found in self.jobs.items())
            raise UsageError(f"the cluster has no {task}; its jobs: {known or 'none'}")
        return addresses[task.index]

    @staticmethod
    def from_hosts(**jobs: str) -> ClusterSpec:
        """From comma-separated addresses by job: ``from_hosts(ps="a:1,b:1", worker="c:1")``."""
        return ClusterSpec(
            {
                job: tuple(h.strip() for h in hosts.split(",") if h.strip())
                for job, hosts in jobs.items()
            }
        )
