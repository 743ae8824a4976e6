"""`bench transfer`: how fast one large tensor is sent from worker to ps.

It follows a test of TensorFlow's distributed runtime of 2017-18: one ps and one worker each have a
variable of the same size, and the worker's variable is assigned to the ps's repeatedly. Here every
protocol has its own ps and worker, which stay for the whole call. The protocols take turns,
together with programs that move the same bytes without TensorFlow (`tcp.baselines`). `bench all`
measures sizes from 64 bytes to a gigabyte this way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import psutil

from tensorwire.bench.experiments import tcp
from tensorwire.bench.experiments.tensors import Tensors, TensorVariant, one_tensor
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.columns import Column, StepMs
from tensorwire.bench.frame.experiment import Case, Experiment, Variant
from tensorwire.bench.frame.hosts import HostPool
from tensorwire.bench.frame.options import experiment_command
from tensorwire.bench.frame.record import Record, Result, words
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.variants import PAIRS
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.units import data_size

GRPC_LIMIT_MB = 2**31 / 1e6
"""The limit of a protobuf message, and so of a tensor on grpc."""
SIZES_BYTES = (64, *(10**power for power in range(3, 10)))
BASELINE_BYTES = 100_000_000
"""With several sizes, the baselines are measured at this size, or at the nearest one."""
# A variable on each task, and the received tensor before it replaces the old value.
_COPIES = 3
_BYTES_A_ROUND = 300e6
_MOST_STEPS_A_ROUND = 40


@dataclass(frozen=True)
class TransferResult(Result):
    """`bench transfer`: one protocol assigning one large tensor from worker to ps."""

    commands = ("bench transfer",)
    figure = "mb_per_s"
    title = "Tensor transfer"
    group_header = "size"
    over_sizes = "A tensor from worker to ps, through TensorFlow"
    of = words("Tensors of {0.group}")
    does = words("moves {0.group} from worker to ps")

    protocol: str
    tensor_fuse: bool
    data_mb: float
    tensors: int
    iters: int
    """Measured steps."""
    mb_per_s: Annotated[float, Column("MB/s", "MB/s", chart="Rate, MB = 10^6 bytes")]
    """`data_mb` divided by the median time of a step."""
    step_ms: Annotated[StepMs, Column("step ms", chart="Time of a step")]
    cpu_s_per_gb: Annotated[float | None, Column("CPU s/GB")]
    """CPU seconds of ps and worker per GB moved; None if one of them is on another host."""

    @property
    def size_bytes(self) -> float:
        return self.data_mb * 1e6


class TransferVariant(TensorVariant[TransferResult]):
    """One protocol."""

    def result(self, case: Case[Tensors], rounds: Rounds) -> TransferResult:
        tensors = case.what
        steps = sum(map(len, rounds))
        return TransferResult(
            protocol=self.protocol,
            tensor_fuse=self.setting.tensor_fuse,
            data_mb=tensors.data_mb,
            tensors=tensors.count,
            iters=steps,
            mb_per_s=tensors.data_mb / statistics.typical_s(rounds),
            step_ms=statistics.step_ms(rounds),
            cpu_s_per_gb=self.cpu_s[tensors] / (steps * tensors.data_mb / 1e3),
        )


@dataclass(frozen=True, kw_only=True)
class Transfer(Experiment[Tensors, TransferResult]):
    """Move one tensor from worker to ps repeatedly.

    Also measures one raw TCP stream with buffers of the same size, and one memcpy of such a
    buffer, or iperf3 over a lab's link. On two hosts the worker ends with the line `transfer rate:
    … MB/s`, of the last protocol; MB are 10^6 bytes.
    """

    command = "bench transfer"

    data_mb: float = option(100.0, "MB of the tensor (10^6 bytes).")
    iters: int | None = option(
        None,
        "Measured steps of each protocol.  [default: 30, and up to 300 for a small tensor]",
        least=1,
    )

    def __post_init__(self) -> None:
        check_data_mb(self.data_mb)
        check_grpc_limit(self.data_mb, self.protocols)

    @property
    def cases(self) -> list[Case[Tensors]]:
        steps = self.iters or max(30, min(300, round(3000 / self.data_mb)))
        return [_case(round(self.data_mb * 1e6), statistics.split(steps, self.rounds))]

    @property
    def baseline_bytes(self) -> int:
        """The size at which the baselines are measured: 100 MB, or the nearest."""
        sizes = [round(case.what.data_mb * 1e6) for case in self.cases]
        return max([size for size in sizes if size <= BASELINE_BYTES], default=min(sizes))

    def variants(self, hosts: HostPool) -> Sequence[Variant[Tensors, Any]]:
        self._check_memory()
        baselines = tcp.baselines(one_tensor(self.baseline_bytes), hosts)
        return [*(TransferVariant(each, hosts) for each in self.settings), *baselines]

    def pairs(self, names: Sequence[str], hosts: HostPool) -> Sequence[tuple[str, str]]:
        return [*PAIRS, *tcp.baseline_pairs(names, hosts)]

    def needed_bytes(self, size_bytes: float) -> float:
        """Memory that the tasks of all protocols need for a tensor of this size."""
        return len(self.settings) * _COPIES * size_bytes

    def _check_memory(self) -> None:
        largest = max(case.what.data_mb for case in self.cases)
        needed = self.needed_bytes(largest * 1e6)
        needed += tcp.COPIES * min(self.baseline_bytes, tcp.LARGEST_BUFFER_BYTES)
        available = psutil.virtual_memory().available
        if needed > available:
            raise TensorwireError(
                f"{largest:g} MB on {len(self.settings)} protocol(s) takes about "
                f"{needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are available: "
                "use a smaller --data-mb or one protocol"
            )

    @classmethod
    def of_options(cls, given: Mapping[str, Any]) -> Transfer:
        if "protocols" in given or given["data_mb"] < GRPC_LIMIT_MB:
            return cls(**given)
        note = "grpc is left out: its messages are limited to 2 GB"
        return cls(**given, protocols=("grpc++",), notes=(note,))

    def last_line(self, record: Record[TransferResult]) -> str:
        return f"transfer rate: {record.results[-1].mb_per_s:.6f} MB/s"


@dataclass(frozen=True, kw_only=True)
class TransferOfSizes(Transfer):
    """Several sizes, each a multiple of 4 bytes, instead of one."""

    sizes_bytes: tuple[int, ...] = SIZES_BYTES

    @property
    def cases(self) -> list[Case[Tensors]]:
        return [_case(size, [steps_of_a_round(size)] * self.rounds) for size in self.sizes_bytes]

    def too_large(self) -> list[int]:
        """The sizes that do not fit into the free memory."""
        free_bytes = psutil.virtual_memory().available / 2
        return [size for size in self.sizes_bytes if self.needed_bytes(size) > free_bytes]


def steps_of_a_round(size_bytes: int) -> int:
    """Number of steps that take a fraction of a second; at least one."""
    return max(1, min(_MOST_STEPS_A_ROUND, round(_BYTES_A_ROUND / size_bytes)))


def _case(size_bytes: int, steps: Sequence[int]) -> Case[Tensors]:
    return Case(data_size(size_bytes), one_tensor(size_bytes), steps)


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


command = experiment_command(
    Transfer,
    """
  tensorwire bench transfer --data-mb 100
  tensorwire bench transfer --ps-hosts host1:12222 --worker-hosts host2:12222 --job ps --task 0
  tensorwire bench transfer --ps-hosts host1:12222 --worker-hosts host2:12222 \\
      --job worker --task 0 --data-mb 100 --iters 100""",
    tasks="one",
)
