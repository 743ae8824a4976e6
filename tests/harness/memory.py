"""Memory of a ps and a worker while one large tensor is sent thousands of times.

The memory of received tensors is kept for reuse. If too much of it were kept, or if a step leaked
memory, resident memory would grow with the number of steps.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import psutil

from tensorwire.bench.experiments.tensors import TensorVariant, one_tensor
from tensorwire.bench.experiments.transfer import check_data_mb, check_grpc_limit
from tensorwire.bench.frame.record import Metric, Record, Result
from tensorwire.bench.frame.tasks import Watcher
from tensorwire.bench.frame.variants import Setting
from tensorwire.errors import UsageError
from tensorwire.report.section import Section, Table
from tensorwire.units import data_size

COMMAND = "benchmarks/memory"
EARLY_STEPS = 100
_STEPS_BETWEEN_SAMPLES = 100
_DEFAULT_POOL_MB = 1024.0


@dataclass(frozen=True)
class MemoryPlan:
    """`iters` steps, the first EARLY_STEPS included. MB are 10^6 bytes."""

    protocol: str = "grpc++"
    transport: str = "auto"
    data_mb: float = 100.0
    iters: int = 10_000

    def __post_init__(self) -> None:
        """Raises UsageError for settings that cannot be measured."""
        check_data_mb(self.data_mb)
        check_grpc_limit(self.data_mb, (self.protocol,))
        if self.iters <= EARLY_STEPS:
            raise UsageError(f"--iters {self.iters}: give more than {EARLY_STEPS}")

    @property
    def shares(self) -> list[int]:
        """Numbers of steps between samples, after EARLY_STEPS."""
        whole, rest = divmod(self.iters - EARLY_STEPS, _STEPS_BETWEEN_SAMPLES)
        return [_STEPS_BETWEEN_SAMPLES] * whole + ([rest] if rest else [])

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return len(self.shares)


@dataclass(frozen=True)
class MemoryResult(Result):
    """`benchmarks/memory`: memory of one task while one large tensor is sent repeatedly."""

    commands = ("benchmarks/memory",)

    protocol: str
    transport: str
    task: str
    """"ps:0" or "worker:0"."""
    data_mb: float
    iters: int
    early_mb: float
    """Resident memory, in MB of 10^6 bytes, after the first hundred steps."""
    highest_mb: float
    """The highest of the samples taken from then on."""
    final_mb: float
    """After the last step."""
    pool_cap_mb: float
    """The memory that a task may keep for received tensors, in MB (TENSORWIRE_POOL_MB)."""

    @property
    def metric(self) -> Metric:
        of = f"Highest memory of {self.task}, tensors of {data_size(self.data_mb * 1e6)}"
        return Metric(of, self.protocol, self.highest_mb, "MB", more_is_better=False)

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _memory_section(record)


def _memory_section(record: Record[MemoryResult]) -> Section:
    table = Table(
        f"Resident memory over {record.results[0].iters} steps, MB (of 10^6 bytes)",
        ["task", "protocol", "tensor", "after 100 steps", "highest", "at the end", "pool's cap"],
        [
            [
                [
                    r.task,
                    r.protocol,
                    *(
                        f"{mb:.0f}"
                        for mb in (r.data_mb, r.early_mb, r.highest_mb, r.final_mb, r.pool_cap_mb)
                    ),
                ]
                for r in record.results
            ]
        ],
        text_columns=2,
    )
    return Section("Memory", tables=[table])


def run(plan: MemoryPlan, watcher: Watcher) -> Record[MemoryResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    tensors = one_tensor(round(plan.data_mb * 1e6))
    samples: list[dict[str, int]] = []
    setting = Setting(plan.protocol, transport=plan.transport)
    side: TensorVariant[MemoryResult] = TensorVariant(setting)
    with side:
        watcher.activity("starting the tasks")
        side.wait_started(watcher)
        side.build(tensors)
        watcher.activity(f"the first {EARLY_STEPS} steps")
        side.run(tensors, EARLY_STEPS, warm_up=0)
        samples.append(_resident_bytes(side))
        watcher.activity("moving tensors")
        for iters in plan.shares:
            side.run(tensors, iters, warm_up=0)
            samples.append(_resident_bytes(side))
            watcher.advance()
        side.verify(tensors)
        tensorflow = side.tensorflow
    results = [
        MemoryResult(
            protocol=plan.protocol,
            transport=plan.transport,
            task=task,
            data_mb=plan.data_mb,
            iters=plan.iters,
            early_mb=samples[0][task] / 1e6,
            highest_mb=max(sample[task] for sample in samples) / 1e6,
            final_mb=samples[-1][task] / 1e6,
            pool_cap_mb=pool_cap_mb(),
        )
        for task in samples[0]
    ]
    return Record(COMMAND, tensorflow, results, ratios={})


def _resident_bytes(side: TensorVariant[MemoryResult]) -> dict[str, int]:
    """Current resident memory of each task, by the task's name."""
    return {
        name: int(psutil.Process(process.pid).memory_info().rss)
        for name, process in side.processes.items()
    }


def pool_cap_mb() -> float:
    """The pool limit in MB of the tasks, which inherit this process's environment."""
    return float(os.environ.get("TENSORWIRE_POOL_MB") or _DEFAULT_POOL_MB) * 2**20 / 1e6
