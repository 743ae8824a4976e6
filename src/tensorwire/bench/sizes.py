"""`bench transfer` over sizes: one call from a tensor of 64 bytes to one of a gigabyte.

The protocols' tasks are started once, and take turns at each size; at one of them with what moves
the same bytes without TensorFlow.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil

from tensorwire.bench.tensor_sides import Tensors, TensorSide
from tensorwire.bench.transfer import Ceilings, TransferResult
from tensorwire.measure import statistics
from tensorwire.measure.comparison import by_side_and_case, compare_cases
from tensorwire.measure.contenders import (
    DEFAULT_SETTING,
    PAIRS,
    PROTOCOLS,
    Contender,
    Setting,
    contenders,
)
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.noise import NoiseWatch
from tensorwire.measure.record import Record
from tensorwire.measure.tasks import Watcher
from tensorwire.units import data_size

SIZES_BYTES = (64, *(10**power for power in range(3, 10)))
CEILING_BYTES = 100_000_000
"""The ceilings are measured at this size, or the largest below; or the smallest of all."""
# A variable on each task, and the received tensor beside the one that it replaces.
_COPIES = 3
_BYTES_A_ROUND = 300e6
_MOST_STEPS_A_ROUND = 40
_WARM_UP_STEPS = 2


@dataclass(frozen=True)
class SizesPlan:
    """One call; each size of `sizes_bytes` is a multiple of 4."""

    sizes_bytes: tuple[int, ...] = SIZES_BYTES
    rounds: int = 5
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return contenders(self.protocols, self.setting)

    @property
    def ceiling_bytes(self) -> int:
        """The size at which the ceilings are measured too."""
        fitting = [size for size in self.sizes_bytes if size <= CEILING_BYTES]
        return max(fitting) if fitting else min(self.sizes_bytes)

    @property
    def blocks(self) -> int:
        """How often the watcher is advanced."""
        return self.rounds * len(self.sizes_bytes)

    def too_large(self) -> list[int]:
        """The sizes that do not fit into the memory that is free now."""
        free_bytes = psutil.virtual_memory().available / 2
        sides = len(self.contenders)
        return [size for size in self.sizes_bytes if size * _COPIES * sides > free_bytes]


def steps_of_a_round(size_bytes: int) -> int:
    """So many that a round takes a fraction of a second, and one at least."""
    return max(1, min(_MOST_STEPS_A_ROUND, round(_BYTES_A_ROUND / size_bytes)))


def run(
    plan: SizesPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[TransferResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    The ratios are called "grpc++/grpc 64 B" and so on.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    noise = NoiseWatch()
    rounds: dict[str, dict[str, list[list[float]]]] = {
        data_size(size): {contender.name: [] for contender in plan.contenders}
        for size in plan.sizes_bytes
    }
    cpu_s: dict[tuple[str, str], float] = {}
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        sides = [stack.enter_context(TensorSide(each, host_pool)) for each in plan.contenders]
        ceilings = stack.enter_context(Ceilings(plan.ceiling_bytes, host_pool))
        for side in sides:
            side.wait_started(watcher)
        ceilings.wait_started()
        of_ceilings = rounds[data_size(plan.ceiling_bytes)]
        of_ceilings.update({name: [] for name in ceilings.names})
        for size in plan.sizes_bytes:
            case = data_size(size)
            tensors = Tensors(f"size_{size}", 1, size // 4)
            watcher.activity(f"{case}: warming up")
            for side in sides:
                side.build(tensors)
                side.block(tensors, iters=1, warm_up=_WARM_UP_STEPS)
            watcher.activity(f"{case}: measuring")
            for _ in range(plan.rounds):
                for side in sides:
                    block = side.block(tensors, steps_of_a_round(size))
                    rounds[case][side.name].append(block.step_s)
                    cpu_s[case, side.name] = cpu_s.get((case, side.name), 0.0) + block.cpu_s
                if size == plan.ceiling_bytes:
                    for name in ceilings.names:
                        block_s = ceilings.block(name, steps_of_a_round(size), size / 1e6)
                        of_ceilings[name].append(block_s)
                watcher.advance()
            for side in sides:
                side.verify(tensors)
        tensorflow = sides[-1].tensorflow
    names = [contender.name for contender in plan.contenders]
    results = []
    for size in plan.sizes_bytes:
        case = data_size(size)
        steps = plan.rounds * steps_of_a_round(size)
        results += [
            TransferResult(
                protocol=each.protocol,
                tensor_fuse=each.setting.tensor_fuse,
                data_mb=size / 1e6,
                tensors=1,
                iters=steps,
                mb_per_s=size / 1e6 / statistics.typical_s(rounds[case][each.name]),
                step_ms=statistics.step_ms(rounds[case][each.name]),
                cpu_s_per_gb=cpu_s[case, each.name] / (steps * size / 1e9),
            )
            for each in plan.contenders
        ]
    return Record(
        command="bench transfer",
        tensorflow=tensorflow,
        results=results,
        ratios=compare_cases(rounds, [*PAIRS, *ceilings.pairs(names)]),
        ceilings={
            name: plan.ceiling_bytes / 1e6 / statistics.typical_s(of_ceilings[name])
            for name in ceilings.names
        },
        lab=host_pool.document,
        noise=noise.seen(by_side_and_case(rounds)),
    )
