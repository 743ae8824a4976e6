"""The machine on which was measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The machine on which was measured."""

    cpu: str
    cores: int
    """Cores that this process may use."""
    kernel: str

    @staticmethod
    def here() -> Machine:
        cpu = platform.machine()
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                cpu = value.strip()
                break
        return Machine(cpu=cpu, cores=len(os.sched_getaffinity(0)), kernel=platform.release())
