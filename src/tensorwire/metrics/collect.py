"""The metrics of this process, from the plug-in and from the operating system."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tensorwire.metrics.breakdown import TOTALS
from tensorwire.metrics.task_metrics import TaskMetrics

_CGROUPS = Path("/proc/self/cgroup")
_MOUNTS = Path("/proc/self/mounts")


def usable_cores() -> float:
    """Cores that this process may use: the smaller of its CPU set and its control group's quota.

    Kubernetes implements `limits.cpu` by a quota, which all processes of the group share.
    """
    return min(float(len(os.sched_getaffinity(0))), *_quotas(), float("inf"))


def _quotas() -> Iterator[float]:
    """Quotas of this process's group and of all groups above it, in cores."""
    for group, mount, _ in cpu_groups():
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                yield _quota(folder)
            if folder == mount:
                break


def cpu_groups() -> Iterator[tuple[Path, Path, int]]:
    """This process's groups that may have CPU quotas, their mount points, and cgroups' version."""
    own: dict[str, str] = {}
    for line in _CGROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    for line in _MOUNTS.read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(",") and "cpu" in own:
            yield Path(mount + own["cpu"]), Path(mount), 1
        elif kind == "cgroup2" and "" in own:
            yield Path(mount + own[""]), Path(mount), 2


def _quota(folder: Path) -> float:
    """The quota in cores. Raises OSError or ValueError if the group has none."""
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)  # ValueError: "max"
    quota_us = int((folder / "cpu.cfs_quota_us").read_text())
    if quota_us <= 0:
        raise ValueError("no quota")
    return quota_us / int((folder / "cpu.cfs_period_us").read_text())


Source = Callable[[], TaskMetrics]


def source(stats: Callable[[], Mapping[str, Any]]) -> Source:
    """A reader of this process's metrics; `stats` is `tensorwire.tf.stats`."""
    process = psutil.Process()

    def collect() -> TaskMetrics:
        with process.oneshot():
            cpu = process.cpu_times()
            record = {
                "host": socket.gethostname(),
                "pid": process.pid,
                "cores": usable_cores(),
                "at_s": time.time(),
                "cpu_s": cpu.user + cpu.system,
                "rss_bytes": process.memory_info().rss,
            }
        return TaskMetrics.from_json({**stats(), "process": record, "steps": asdict(TOTALS.now())})

    return collect
