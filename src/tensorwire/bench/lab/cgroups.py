"""CPU limits: a control group for each host, in version 1 or version 2 of cgroups."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

from tensorwire.bench.lab import cleanup_process
from tensorwire.errors import TensorwireError
from tensorwire.metrics.collect import cpu_groups

_PERIOD_US = 100_000
_PREFIX = "tensorwire-lab-"


class CpuGroup:
    """A control group whose processes share a number of CPUs; initially without a limit."""

    def __init__(self, path: Path) -> None:
        """Makes the group; use a path from `paths`.

        Raises:
            TensorwireError: this user has no permission.
        """
        self.path = path
        try:
            self._claim = _claimed(path)
        except OSError as error:
            raise TensorwireError(f"no control group {path}: {error.strerror}") from error

    def set(self, cpus: float | None) -> None:
        """Limits all its processes together to `cpus` CPUs; None: no limit.

        Raises:
            TensorwireError: the kernel refuses.
        """
        quota = None if cpus is None else round(cpus * _PERIOD_US)
        try:
            if (self.path / "cpu.max").exists():
                limit = "max" if quota is None else str(quota)
                (self.path / "cpu.max").write_text(f"{limit} {_PERIOD_US}")
            else:
                (self.path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self.path / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
        except OSError as error:
            raise TensorwireError(f"cannot limit {self.path}: {error.strerror}") from error

    def remove(self) -> None:
        """Ends the processes that are still in it, and removes it."""
        cleanup_process.remove_cgroup(self.path)
        os.close(self._claim)


def _claimed(path: Path) -> int:
    """Makes the group and returns a descriptor that locks it as long as its owner lives."""
    while True:
        path.mkdir()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return descriptor
        os.close(descriptor)  # another process swept it before it was locked


def paths(count: int) -> list[Path]:
    """Paths for `count` groups of this process; none if it may not create any."""
    own = uuid.uuid4().hex
    return [parent / f"{_PREFIX}{own}-{index}" for parent in _parents() for index in range(count)]


def sweep() -> list[Path]:
    """Removes and returns the groups whose owner and cleanup process have both died.

    A lock shows whether the owner lives. A process id would not work across containers.
    """
    swept = []
    for parent in _parents():
        for path in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # its owner lives, or the group was removed
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    cleanup_process.remove_cgroup(path)
                    swept.append(path)
                finally:
                    os.close(descriptor)
    return swept


def _parents() -> list[Path]:
    """The group in which groups with the CPU controller can be made; empty if there is none."""
    for group, mount, version in cpu_groups():
        if version == 1:
            return [group]
        # A group that contains processes cannot have children with controllers (cgroup 2), so its
        # parents are tried, too.
        return [
            each
            for each in (group, *group.parents)
            if each.is_relative_to(mount) and "cpu" in _delegated(each)
        ][:1]
    return []


def _delegated(group: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return (group / "cgroup.subtree_control").read_text().split()
    return []
