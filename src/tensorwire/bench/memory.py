"""The result of `benchmarks/memory`: what tasks hold in memory while one large tensor moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorwire.measure.record import Metric, Record, Result
from tensorwire.measure.section import Section, Table
from tensorwire.units import data_size


@dataclass(frozen=True)
class MemoryResult(Result):
    """`benchmarks/memory`: what one task holds while one large tensor moves over and over."""

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
    """What a task may keep of received tensors' memory (TENSORWIRE_POOL_MB)."""

    @property
    def metric(self) -> Metric:
        of = f"Highest memory of {self.task}, tensors of {data_size(self.data_mb * 1e6)}"
        return Metric(of, self.protocol, self.highest_mb, "MB", more_is_better=False)

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


def _section(record: Record[MemoryResult]) -> Section:
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
