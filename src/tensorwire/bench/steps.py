"""`bench steps`: how long a step takes that moves little, where latency and not bandwidth counts.

"tiny" assigns one tensor of 4 KB, so the time is that of the step's messages themselves; "many"
assigns 200 tensors of 4 KB, as a model with hundreds of feature columns does in each step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tensorwire.bench.tensor_sides import Tensors, TensorSide
from tensorwire.measure import statistics
from tensorwire.measure.comparison import by_side_and_case, compare_cases
from tensorwire.measure.contenders import (
    DEFAULT_SETTING,
    PROTOCOLS,
    Contender,
    Setting,
    contenders,
    side_name,
)
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.noise import NoiseWatch
from tensorwire.measure.record import Metric, Record, Result, StepMs
from tensorwire.measure.section import Section, Table
from tensorwire.measure.tasks import Watcher
from tensorwire.measure.views import by_case, compared, step_bars, step_cells


@dataclass(frozen=True)
class StepsResult(Result):
    """`bench steps`: one protocol, one case of small tensors."""

    commands = ("bench steps",)

    protocol: str
    tensor_fuse: bool
    case: str
    """"tiny" or "many"."""
    data_mb: float
    tensors: int
    iters: int
    step_ms: StepMs

    @property
    def metric(self) -> Metric:
        side = side_name(self.protocol, self.tensor_fuse)
        return Metric(f"A step, {self.case}", side, self.step_ms.p50, "ms", more_is_better=False)

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


_FLOATS_OF_4_KB = 1024
CASES: Mapping[str, Tensors] = MappingProxyType(
    {
        "tiny": Tensors("tiny", 1, _FLOATS_OF_4_KB),
        "many": Tensors("many", 200, _FLOATS_OF_4_KB),
    }
)
_WARM_UP_STEPS = 20
_WARM_UP_STEPS_OF_A_BLOCK = 3


@dataclass(frozen=True)
class StepsPlan:
    """One call of `bench steps`; `iters` steps for each case and contender, over all rounds."""

    cases: tuple[str, ...] = tuple(CASES)
    iters: int = 600
    rounds: int = 20
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

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


def run(
    plan: StepsPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[StepsResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    With one case the ratio is called "grpc++/grpc"; with both, "grpc++/grpc tiny" and so on.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    noise = NoiseWatch()
    rounds: dict[str, dict[str, list[list[float]]]] = {
        case: {contender.name: [] for contender in plan.contenders} for case in plan.cases
    }
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        sides = [stack.enter_context(TensorSide(each, host_pool)) for each in plan.contenders]
        for side in sides:
            side.wait_started(watcher)
        watcher.activity("warming up")
        for case in plan.cases:
            for side in sides:
                side.build(CASES[case])
                side.block(CASES[case], iters=1, warm_up=_WARM_UP_STEPS)
        watcher.activity("measuring")
        for iters in plan.shares:
            for case in plan.cases:
                for side in sides:
                    block = side.block(CASES[case], iters, _WARM_UP_STEPS_OF_A_BLOCK)
                    rounds[case][side.name].append(block.step_s)
            watcher.advance()
        for case in plan.cases:
            for side in sides:
                side.verify(CASES[case])
        tensorflow = sides[-1].tensorflow
    results = [
        StepsResult(
            protocol=contender.protocol,
            tensor_fuse=contender.setting.tensor_fuse,
            case=case,
            data_mb=CASES[case].data_mb,
            tensors=CASES[case].count,
            iters=plan.iters,
            step_ms=statistics.step_ms(rounds[case][contender.name]),
        )
        for case in plan.cases
        for contender in plan.contenders
    ]
    return Record(
        command="bench steps",
        tensorflow=tensorflow,
        results=results,
        ratios=compare_cases(rounds),
        noise=noise.seen(by_side_and_case(rounds)),
        lab=host_pool.document,
    )


def _section(record: Record[StepsResult]) -> Section:
    table = Table(
        "Time of a step that assigns small tensors, worker to ps",
        ["case", "protocol", "tensors", "step ms p50", "p90", "min"],
        [
            [
                [
                    case,
                    side_name(r.protocol, r.tensor_fuse),
                    str(r.tensors),
                    *step_cells(r.step_ms),
                ]
                for r in rows
            ]
            for case, rows in by_case(record.results)
        ],
        text_columns=2,
    )
    charts = [
        step_bars(
            f"Time of a step, {case}",
            [(side_name(r.protocol, r.tensor_fuse), r.step_ms) for r in rows],
        )
        for case, rows in by_case(record.results)
    ]
    return Section("Small steps", compared(record.ratios, "takes small steps"), charts, [table])
