"""`bench transfer`: how fast one large tensor goes from worker to ps.

After a test of TensorFlow's distributed runtime of 2017-18: one ps, one worker, a variable of the
same size on each, and the worker's is assigned to the ps's over and over. Here every protocol has a
ps and a worker of its own that stay for the whole call, and the protocols take turns, together with
one raw TCP stream and, on one machine, one memcpy of a buffer of the same size. On a link that is
slower than the machine's memory it is iperf3, where installed, in the place of memcpy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire.bench.iperf3 import IPERF3, Iperf3Side
from tensorwire.bench.iperf3 import is_installed as iperf3_is_installed
from tensorwire.bench.tensor_sides import CeilingSide, Tensors, TensorSide
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.measure import statistics
from tensorwire.measure.comparison import compare
from tensorwire.measure.contenders import (
    DEFAULT_SETTING,
    PAIRS,
    PROTOCOLS,
    Contender,
    Setting,
    contenders,
    side_name,
)
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.noise import NoiseWatch
from tensorwire.measure.record import Metric, Record, Result, StepMs
from tensorwire.measure.section import Bar, Bars, Line, Lines, Section, Table
from tensorwire.measure.tasks import Watcher
from tensorwire.measure.views import compared, step_bars, step_cells
from tensorwire.units import data_size, number


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
    """data_mb over the median time of a step."""
    step_ms: StepMs
    cpu_s_per_gb: float | None
    """CPU seconds of ps and worker for each GB moved; None where one of them is on another host."""

    @property
    def metric(self) -> Metric:
        side = side_name(self.protocol, self.tensor_fuse)
        return Metric(f"Tensors of {data_size(self.data_mb * 1e6)}", side, self.mb_per_s, "MB/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


# Above this a buffer is in DRAM wholly, and the rate of a larger one is the same.
_CEILING_BUFFER_MB = 1000.0
# A variable on each task, and the received tensor beside the one that it replaces.
_COPIES_PER_PROTOCOL = 3
_CEILING_COPIES = 3
GRPC_LIMIT_MB = 2**31 / 1e6
"""A message of protobuf, and so a tensor on grpc, is smaller."""


@dataclass(frozen=True)
class TransferPlan:
    """One call of `bench transfer` on this machine. Sizes in MB of 10^6 bytes.

    `iters` steps are measured for each contender, over all rounds.
    """

    data_mb: float = 100.0
    iters: int = 30
    rounds: int = 10
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be measured."""
        check_data_mb(self.data_mb)
        check_grpc_limit(self.data_mb, self.protocols)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return contenders(self.protocols, self.setting)

    @property
    def shares(self) -> list[int]:
        """Steps of each round."""
        return statistics.split(self.iters, self.rounds)

    @property
    def blocks(self) -> int:
        """How often the watcher is advanced."""
        return len(self.shares)

    @property
    def tensors(self) -> Tensors:
        return large_tensor(self.data_mb)


def check_data_mb(data_mb: float) -> None:
    """Raises UsageError unless a tensor can be `data_mb` MB large."""
    if not (math.isfinite(data_mb) and data_mb * 1e6 >= 4):
        raise UsageError(f"--data-mb {data_mb:g}: a tensor has at least one float, 0.000004 MB")


def check_grpc_limit(data_mb: float, protocols: Sequence[str]) -> None:
    """Raises UsageError when one of `protocols` cannot carry a tensor of `data_mb` MB."""
    if "grpc" in protocols and data_mb >= GRPC_LIMIT_MB:
        raise UsageError(
            f"grpc cannot carry {data_mb:g} MB: its messages end at 2 GB; use --protocols grpc++"
        )


def large_tensor(data_mb: float) -> Tensors:
    """One float32 tensor of `data_mb` MB."""
    return Tensors("transfer", 1, round(data_mb * 1e6 / 4))


def run(
    plan: TransferPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[TransferResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed, did not answer in time, or this machine has not the memory.
    """
    noise = NoiseWatch()
    tensors = plan.tensors
    ceiling_bytes = round(min(plan.data_mb, _CEILING_BUFFER_MB) * 1e6)
    _check_memory(plan, ceiling_bytes)
    names = [contender.name for contender in plan.contenders]
    rounds: dict[str, list[list[float]]] = {name: [] for name in names}
    cpu_s = dict.fromkeys(names, 0.0)
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        sides = [stack.enter_context(TensorSide(each, host_pool)) for each in plan.contenders]
        ceilings = stack.enter_context(Ceilings(ceiling_bytes, host_pool))
        for side in sides:
            side.wait_started(watcher)
        ceilings.wait_started()
        rounds.update({name: [] for name in ceilings.names})
        watcher.activity("warming up")
        for side in sides:
            side.build(tensors)
            side.block(tensors, iters=1, warm_up=2)
        watcher.activity("measuring")
        for iters in plan.shares:
            for side in sides:
                block = side.block(tensors, iters)
                rounds[side.name].append(block.step_s)
                cpu_s[side.name] += block.cpu_s
            for name in ceilings.names:
                rounds[name].append(ceilings.block(name, iters, plan.data_mb))
            watcher.advance()
        for side in sides:
            side.verify(tensors)
        tensorflow = sides[-1].tensorflow
    results = [
        TransferResult(
            protocol=contender.protocol,
            tensor_fuse=contender.setting.tensor_fuse,
            data_mb=plan.data_mb,
            tensors=1,
            iters=plan.iters,
            mb_per_s=plan.data_mb / statistics.typical_s(rounds[contender.name]),
            step_ms=statistics.step_ms(rounds[contender.name]),
            cpu_s_per_gb=cpu_s[contender.name] / (plan.iters * plan.data_mb / 1e3),
        )
        for contender in plan.contenders
    ]
    return Record(
        command="bench transfer",
        tensorflow=tensorflow,
        results=results,
        ratios=compare(rounds, [*PAIRS, *ceilings.pairs(names)]),
        ceilings={
            name: plan.data_mb / statistics.typical_s(rounds[name]) for name in ceilings.names
        },
        noise=noise.seen(rounds),
        lab=host_pool.document,
    )


class Ceilings(contextlib.ExitStack):
    """What moves the same bytes without TensorFlow. A context manager."""

    def __init__(self, size_bytes: int, host_pool: HostPool) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._raw = CeilingSide(size_bytes, host_pool)
        has_iperf3 = host_pool.have_link and host_pool.is_this_machine and iperf3_is_installed()
        self._iperf3 = Iperf3Side(host_pool) if has_iperf3 else None
        self._have_link = host_pool.have_link
        last = () if host_pool.have_link else ("memcpy",)
        self.names = ("tcp", *((IPERF3,) if self._iperf3 else last))

    def __enter__(self) -> Ceilings:
        super().__enter__()
        self.enter_context(self._raw)
        if self._iperf3 is not None:
            self.enter_context(self._iperf3)
        return self

    def wait_started(self) -> None:
        """Returns when all of them can be measured."""
        self._raw.wait_started()

    def pairs(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Which of the sides `names` are compared with which ceilings.

        On one machine stock grpc only where nothing of ours takes part.
        """
        ours = [name for name in names if name != "grpc"]
        compared = names if self._have_link else ours or names
        return [(name, ceiling) for name in compared for ceiling in self.names]

    def block(self, name: str, iters: int, data_mb: float) -> list[float]:
        """Seconds of steps that move `data_mb`, `iters` of them or, of iperf3, one."""
        if name == IPERF3 and self._iperf3 is not None:
            return [data_mb / self._iperf3.mb_per_s()]
        scale = data_mb * 1e6 / self._size_bytes
        return [seconds * scale for seconds in self._raw.block(name, iters)]


def _check_memory(plan: TransferPlan, ceiling_bytes: int) -> None:
    tensor_bytes = plan.data_mb * 1e6
    sides = len(plan.contenders)
    needed = sides * _COPIES_PER_PROTOCOL * tensor_bytes
    needed += _CEILING_COPIES * ceiling_bytes
    available = _available_bytes()
    if needed > available:
        raise TensorwireError(
            f"{plan.data_mb:g} MB on {sides} protocol(s) takes about "
            f"{needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are available: "
            "use a smaller --data-mb or one protocol"
        )


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise TensorwireError("/proc/meminfo does not say how much memory is available")


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
