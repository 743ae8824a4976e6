"""`bench steps`: the time of steps that move little data, where latency matters, not bandwidth.

"tiny" assigns one tensor of 4 KB, so its time is that of the step's messages. "many" assigns 200
tensors of 4 KB, like a step of a model with hundreds of feature columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click

from tensorwire.bench.experiments.tensor_sides import Tensors, TensorSide
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.comparison import by_case, compared, step_bars, step_cells
from tensorwire.bench.frame.comparison_options import Comparison, comparison_options
from tensorwire.bench.frame.contenders import (
    DEFAULT_SETTING,
    PROTOCOLS,
    Contender,
    Setting,
    contenders,
    side_name,
)
from tensorwire.bench.frame.experiment import Case, measure
from tensorwire.bench.frame.host_options import between_hosts
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.record import Metric, Record, Result, StepMs
from tensorwire.bench.frame.showing import measure_and_show
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import Watcher
from tensorwire.cli.click_extensions import options_of
from tensorwire.options import option
from tensorwire.report.section import Section, Table

COMMAND = "bench steps"
_FLOATS_OF_4_KB = 1024
CASES: Mapping[str, Tensors] = MappingProxyType(
    {
        "tiny": Tensors("tiny", 1, _FLOATS_OF_4_KB),
        "many": Tensors("many", 200, _FLOATS_OF_4_KB),
    }
)


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


@dataclass(frozen=True)
class StepsPlan:
    """One call of `bench steps`; `iters` steps for each case and contender, over all rounds."""

    cases: tuple[str, ...] = option(
        tuple(CASES),
        "tiny: one tensor of 4 KB; many: 200 tensors of 4 KB.  [default: both]",
        name="--case",
        choices=tuple(CASES),
        show_default=False,
    )
    iters: int = option(600, "Measured steps of each case and protocol.", least=1)
    rounds: int = 20
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return contenders(self.protocols, self.setting)

    @property
    def turns(self) -> list[Case[Tensors]]:
        steps = statistics.split(self.iters, self.rounds)
        return [Case(name, CASES[name], steps) for name in self.cases]

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return sum(len(case.steps) for case in self.turns)


class StepsSide(TensorSide[StepsResult]):
    """The side of one protocol."""

    first_warm_up_steps = 20
    warm_up_steps = 3

    def result(self, case: Case[Tensors], rounds: Rounds) -> StepsResult:
        return StepsResult(
            protocol=self.protocol,
            tensor_fuse=self.contender.setting.tensor_fuse,
            case=case.name,
            data_mb=case.what.data_mb,
            tensors=case.what.count,
            iters=sum(map(len, rounds)),
            step_ms=statistics.step_ms(rounds),
        )


def run(
    plan: StepsPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[StepsResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    sides = [StepsSide(each, host_pool) for each in plan.contenders]
    return measure(
        COMMAND, sides, plan.turns, watcher, lab=host_pool.document, cases_take_turns=True
    )


@click.command(
    "steps",
    epilog="""\b
Examples:
  tensorwire bench steps
  tensorwire bench steps --case many --tensor-fuse --json steps.json""",
)
@options_of(StepsPlan)
@comparison_options(default_rounds=20)
@between_hosts(COMMAND)
def command(*, comparison: Comparison, cases: str | None, **options: Any) -> None:
    """Time steps that move little: one tiny tensor, and many small ones."""
    chosen = tuple(CASES) if cases is None else (cases,)
    plan = StepsPlan(chosen, **options, **comparison.of_plan)
    measure_and_show(COMMAND, plan, run, comparison)


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
