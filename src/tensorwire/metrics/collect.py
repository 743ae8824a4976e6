"""The figures of this process: what the plug-in counted, and what the system knows."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import psutil

from tensorwire.metrics.breakdown import TOTALS
from tensorwire.metrics.cores import usable_cores
from tensorwire.metrics.task_metrics import TaskMetrics

Source = Callable[[], TaskMetrics]


def source(stats: Callable[[], Mapping[str, Any]]) -> Source:
    """What reads this process's figures; `stats` is `tensorwire.tf.stats`."""
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
