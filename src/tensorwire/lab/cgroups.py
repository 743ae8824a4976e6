"""CPU shares: a control group for each host, of cgroup version 2 or, where that is, version 1."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

from tensorwire.errors import TensorwireError
from tensorwire.lab import cleanup_process

_PERIOD_US = 100_000
_PREFIX = "tensorwire-lab-"


class CpuGroup:
    """A control group whose processes share a number of CPUs; without a limit at first."""

    def __init__(self, path: Path) -> None:
        """Makes the group, whose parent has to be one of `parents()`.

        Raises:
            TensorwireError: this user may not.
        """
        self.path = path
        try:
            self._claim = _claimed(path)
        except OSError as error:
            raise TensorwireError(f"no control group {path}: {error.strerror}") from error

    def set(self, cpus: float | None) -> None:
        """Limits all its processes together to `cpus` CPUs; None: to nothing.

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
    """Makes the group and returns a descriptor that has it locked, as long as its owner lives."""
    while True:
        path.mkdir()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return descriptor
        os.close(descriptor)  # swept before it was locked


def paths(count: int) -> list[Path]:
    """Paths for `count` groups of this process; none if it may not create any."""
    own = uuid.uuid4().hex
    return [parent / f"{_PREFIX}{own}-{index}" for parent in _parents() for index in range(count)]


def sweep() -> list[Path]:
    """Removes and returns the groups of owners that have died with their cleanup processes.

    A lock tells, and not a process id, which means another process in another container.
    """
    swept = []
    for parent in _parents():
        for path in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # its owner lives, or it is gone meanwhile
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    cleanup_process.remove_cgroup(path)
                    swept.append(path)
                finally:
                    os.close(descriptor)
    return swept


def _parents() -> list[Path]:
    """The group, at most one, in which groups with the CPU controller can be made."""
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(",") and "cpu" in own:
            return [Path(mount + own["cpu"])]
        if kind == "cgroup2" and "" in own:
            # A group with processes has no children with controllers, so mostly not our own.
            group = Path(mount + own[""])
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
