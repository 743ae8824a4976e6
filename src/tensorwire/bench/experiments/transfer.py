"""`bench transfer`: how fast one large tensor is sent from worker to ps.

It follows a test of TensorFlow's distributed runtime of 2017-18: one ps and one worker each have a
variable of the same size, and the worker's variable is assigned to the ps's repeatedly. Here every
protocol has its own ps and worker, which stay for the whole call. The protocols take turns,
together with programs that move the same bytes without TensorFlow (`ceilings`). `bench all`
measures sizes from 64 bytes to a gigabyte this way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import psutil

from tensorwire.bench.experiments import ceilings
from tensorwire.bench.experiments.tensor_sides import Tensors, TensorSide
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.comparison import compared, step_bars, step_cells
from tensorwire.bench.frame.comparison_options import Comparison, comparison_options
from tensorwire.bench.frame.contenders import (
    DEFAULT_SETTING,
    PAIRS,
    PROTOCOLS,
    Contender,
    Setting,
    contenders,
    side_name,
)
from tensorwire.bench.frame.experiment import Case, Side, measure
from tensorwire.bench.frame.host_options import between_hosts
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.record import Metric, Record, Result, StepMs
from tensorwire.bench.frame.showing import measure_and_show
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import Watcher
from tensorwire.cli.click_extensions import options_of
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.report.section import Bar, Bars, Line, Lines, Section, Table
from tensorwire.units import data_size, number

COMMAND = "bench transfer"
GRPC_LIMIT_MB = 2**31 / 1e6
"""The limit of a protobuf message, and so of a tensor on grpc."""
SIZES_BYTES = (64, *(10**power for power in range(3, 10)))
CEILING_BYTES = 100_000_000
"""With several sizes, the ceilings are measured at this size, or at the nearest one."""
# A variable on each task, and the received tensor before it replaces the old value.
_COPIES = 3
_BYTES_A_ROUND = 300e6
_MOST_STEPS_A_ROUND = 40


@dataclass(frozen=True)
class TransferResult(Result):
    """`bench transfer`: one protocol assigning one large tensor from worker to ps."""

    commands = ("bench transfer",)

    protocol: str
    tensor_fuse: bool
    data_mb: float
    tensors: int
    iters: int
    """Measured steps."""
    mb_per_s: float
    """`data_mb` divided by the median time of a step."""
    step_ms: StepMs
    cpu_s_per_gb: float | None
    """CPU seconds of ps and worker per GB moved; None if one of them is on another host."""

    @property
    def metric(self) -> Metric:
        side = side_name(self.protocol, self.tensor_fuse)
        return Metric(f"Tensors of {data_size(self.data_mb * 1e6)}", side, self.mb_per_s, "MB/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


class TensorSizes(ABC):
    """The tensors to move."""

    protocols: tuple[str, ...]
    setting: Setting

    @property
    @abstractmethod
    def cases(self) -> list[Case[Tensors]]:
        """A tensor of each size."""

    @property
    @abstractmethod
    def ceiling_bytes(self) -> int:
        """The size at which the ceilings are measured."""

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return contenders(self.protocols, self.setting)

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return sum(len(case.steps) for case in self.cases)

    def needed_bytes(self, size_bytes: float) -> float:
        """Memory that the tasks of all protocols need for a tensor of this size."""
        return len(self.contenders) * _COPIES * size_bytes


@dataclass(frozen=True)
class TransferPlan(TensorSizes):
    """One size, in MB of 10^6 bytes. `iters`: steps of each contender, over all rounds."""

    data_mb: float = option(100.0, "MB of the tensor (10^6 bytes).")
    iters: int = option(
        30,
        "Measured steps of each protocol.  [default: 30, and up to 300 for a small tensor]",
        least=1,
        show_default=False,
    )
    rounds: int = 10
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be measured."""
        check_data_mb(self.data_mb)
        check_grpc_limit(self.data_mb, self.protocols)

    @property
    def cases(self) -> list[Case[Tensors]]:
        return [_case(round(self.data_mb * 1e6), statistics.split(self.iters, self.rounds))]

    @property
    def ceiling_bytes(self) -> int:
        return round(self.data_mb * 1e6)


@dataclass(frozen=True)
class SizesPlan(TensorSizes):
    """Several sizes, each a multiple of 4 bytes."""

    sizes_bytes: tuple[int, ...] = SIZES_BYTES
    rounds: int = 5
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    @property
    def cases(self) -> list[Case[Tensors]]:
        return [_case(size, [steps_of_a_round(size)] * self.rounds) for size in self.sizes_bytes]

    @property
    def ceiling_bytes(self) -> int:
        fitting = [size for size in self.sizes_bytes if size <= CEILING_BYTES]
        return max(fitting) if fitting else min(self.sizes_bytes)

    def too_large(self) -> list[int]:
        """The sizes that do not fit into the free memory."""
        free_bytes = psutil.virtual_memory().available / 2
        return [size for size in self.sizes_bytes if self.needed_bytes(size) > free_bytes]


def steps_of_a_round(size_bytes: int) -> int:
    """Number of steps that take a fraction of a second; at least one."""
    return max(1, min(_MOST_STEPS_A_ROUND, round(_BYTES_A_ROUND / size_bytes)))


def _case(size_bytes: int, steps: Sequence[int]) -> Case[Tensors]:
    return Case(data_size(size_bytes), one_tensor(size_bytes), steps)


def one_tensor(size_bytes: int) -> Tensors:
    """One float32 tensor of this size."""
    return Tensors(f"size_{size_bytes}", 1, round(size_bytes / 4))


def check_data_mb(data_mb: float) -> None:
    """Raises UsageError unless a tensor can be `data_mb` MB large."""
    if not (math.isfinite(data_mb) and data_mb * 1e6 >= 4):
        raise UsageError(f"--data-mb {data_mb:g}: a tensor has at least one float, 0.000004 MB")


def check_grpc_limit(data_mb: float, protocols: Sequence[str]) -> None:
    """Raises UsageError when one of `protocols` cannot carry a tensor of `data_mb` MB."""
    if "grpc" in protocols and data_mb >= GRPC_LIMIT_MB:
        raise UsageError(
            f"grpc cannot send {data_mb:g} MB: its messages are limited to 2 GB; "
            "use --protocols grpc++"
        )


class TransferSide(TensorSide[TransferResult]):
    """The side of one protocol."""

    def result(self, case: Case[Tensors], rounds: Rounds) -> TransferResult:
        tensors = case.what
        steps = sum(map(len, rounds))
        return TransferResult(
            protocol=self.protocol,
            tensor_fuse=self.contender.setting.tensor_fuse,
            data_mb=tensors.data_mb,
            tensors=tensors.count,
            iters=steps,
            mb_per_s=tensors.data_mb / statistics.typical_s(rounds),
            step_ms=statistics.step_ms(rounds),
            cpu_s_per_gb=self._cpu_s[tensors] / (steps * tensors.data_mb / 1e3),
        )


def run(
    plan: TensorSizes, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[TransferResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed, did not answer in time, or there is too little memory.
    """
    _check_memory(plan)
    ours = [TransferSide(each, host_pool) for each in plan.contenders]
    raw = ceilings.ceiling_sides(one_tensor(plan.ceiling_bytes), host_pool)
    names = [side.name for side in ours]
    pairs = ceilings.ceiling_pairs(names, [side.name for side in raw], host_pool)
    sides: list[Side[Tensors, Any]] = [*ours, *raw]
    return measure(
        COMMAND, sides, plan.cases, watcher, pairs=[*PAIRS, *pairs], lab=host_pool.document
    )


def _check_memory(plan: TensorSizes) -> None:
    largest = max(case.what.data_mb for case in plan.cases)
    needed = plan.needed_bytes(largest * 1e6)
    needed += ceilings.COPIES * min(plan.ceiling_bytes, ceilings.LARGEST_BUFFER_BYTES)
    available = psutil.virtual_memory().available
    if needed > available:
        raise TensorwireError(
            f"{largest:g} MB on {len(plan.contenders)} protocol(s) takes about "
            f"{needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are available: "
            "use a smaller --data-mb or one protocol"
        )


@click.command(
    "transfer",
    epilog="""\b
Examples:
  tensorwire bench transfer --data-mb 100
  tensorwire bench transfer --ps-hosts host1:12222 --worker-hosts host2:12222 --job ps --task 0
  tensorwire bench transfer --ps-hosts host1:12222 --worker-hosts host2:12222 \\
      --job worker --task 0 --data-mb 100 --iters 100""",
)
@options_of(TransferPlan)
@comparison_options(default_rounds=10)
@between_hosts(COMMAND)
def command(*, data_mb: float, iters: int | None, comparison: Comparison) -> None:
    """Move one tensor from worker to ps repeatedly.

    Also measures one raw TCP stream with buffers of the same size, and one memcpy of such a
    buffer, or iperf3 over a lab's link. On two hosts the worker ends with the line `transfer rate:
    … MB/s`, of the last protocol; MB are 10^6 bytes.
    """
    check_data_mb(data_mb)
    iters = iters or max(30, min(300, round(3000 / data_mb)))
    notes = []
    common = comparison.of_plan
    if comparison.named_protocols is None and data_mb >= GRPC_LIMIT_MB:
        common["protocols"] = ("grpc++",)
        notes.append("grpc is left out: its messages are limited to 2 GB")
    plan = TransferPlan(data_mb, iters, **common)
    record = measure_and_show(COMMAND, plan, run, comparison, notes=notes)
    if comparison.part is not None:
        click.echo(f"transfer rate: {record.results[-1].mb_per_s:.6f} MB/s")


def _section(record: Record[TransferResult]) -> Section:
    sizes = dict.fromkeys(result.data_mb for result in record.results)
    if len(sizes) > 1:
        return _section_over_sizes(record)
    size = data_size(record.results[0].data_mb * 1e6)
    sides = [(side_name(r.protocol, r.tensor_fuse), r) for r in record.results]
    raw = [(f"{name} (raw)", rate) for name, rate in record.ceilings.items()]
    table = Table(
        f"Tensor transfer, {size}, worker to ps (MB = 10^6 bytes)",
        ["protocol", *_COLUMNS],
        [
            [[name, *_cells(r)] for name, r in sides],
            [[name, number(rate), "", "", "", ""] for name, rate in raw],
        ],
    )
    bars = [Bar(name, r.mb_per_s, name) for name, r in sides]
    bars += [Bar(name, rate, "raw") for name, rate in raw]
    charts = [
        Bars("Rate, MB = 10^6 bytes", "MB/s", bars),
        step_bars("Time of a step", [(name, r.step_ms) for name, r in sides]),
    ]
    return Section(
        f"Tensor transfer, {size}",
        compared(record.ratios, f"moves {size} from worker to ps"),
        charts,
        [table],
    )


def _section_over_sizes(record: Record[TransferResult]) -> Section:
    of_size: dict[str, list[TransferResult]] = {}
    for result in record.results:
        of_size.setdefault(data_size(result.data_mb * 1e6), []).append(result)
    table = Table(
        "Tensor transfer, worker to ps (MB = 10^6 bytes)",
        ["size", "protocol", *_COLUMNS],
        [
            [[size, side_name(r.protocol, r.tensor_fuse), *_cells(r)] for r in results]
            for size, results in of_size.items()
        ],
        text_columns=2,
    )
    return Section("Tensor transfer over sizes", "", [transfer_lines(record)], [table])


def transfer_lines(record: Record[TransferResult]) -> Lines:
    """The rate of each side over the tensor's size."""
    points: dict[str, list[tuple[float, float]]] = {}
    for r in record.results:
        side = side_name(r.protocol, r.tensor_fuse)
        points.setdefault(side, []).append((r.data_mb * 1e6, r.mb_per_s))
    lines = [Line(side, of_side) for side, of_side in points.items()]
    return Lines(
        "A tensor from worker to ps, through TensorFlow",
        "MB/s",
        lines,
        "MB/s, MB = 10^6 bytes; both axes are logarithmic.",
    )


_COLUMNS = ["MB/s", "step ms p50", "p90", "min", "CPU s/GB"]


def _cells(result: TransferResult) -> list[str]:
    cpu = "-" if result.cpu_s_per_gb is None else number(result.cpu_s_per_gb)
    return [number(result.mb_per_s), *step_cells(result.step_ms), cpu]
