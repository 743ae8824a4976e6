"""`bench steps`: how long a step takes that moves little, where latency and not bandwidth counts.

"tiny" assigns one tensor of 4 KB, so the time is that of the step's messages themselves; "many"
assigns 200 tensors of 4 KB, as a model with hundreds of feature columns does in each step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tensorwire.bench import stats
from tensorwire.bench.noise import NoiseWatch
from tensorwire.bench.places import HERE, Places
from tensorwire.bench.record import Record, StepsResult
from tensorwire.bench.sides import (
    DEFAULT_SETTING,
    PROTOCOLS,
    Contender,
    ProtocolSide,
    Setting,
    Tensors,
    Watcher,
    by_side_and_case,
    compare_cases,
    contenders,
)

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
        return stats.split(self.iters, self.rounds)

    @property
    def blocks(self) -> int:
        """How often the watcher is advanced."""
        return len(self.shares)


def run(plan: StepsPlan, watcher: Watcher, places: Places = HERE) -> Record[StepsResult]:
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
        sides = [stack.enter_context(ProtocolSide(each, places)) for each in plan.contenders]
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
            step_ms=stats.step_ms(rounds[case][contender.name]),
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
        lab=places.document,
    )
