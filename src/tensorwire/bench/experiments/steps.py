"""`bench steps`: the time of steps that move little data, where latency matters, not bandwidth.

"tiny" assigns one tensor of 4 KB, so its time is that of the step's messages. "many" assigns 200
tensors of 4 KB, like a step of a model with hundreds of feature columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from tensorwire.bench.experiments.tensors import Tensors, TensorVariant
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.columns import Column, StepMs
from tensorwire.bench.frame.experiment import Case, Experiment, rounds_option
from tensorwire.bench.frame.hosts import HostPool
from tensorwire.bench.frame.options import experiment_command
from tensorwire.bench.frame.record import Result, words
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.options import option

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
    figure = "step_ms"
    less_is_better = True
    title = "Time of a step that assigns small tensors, worker to ps"
    does = "takes small steps"
    group = words("{0.case}")
    of = words("A step, {0.case}")

    protocol: str
    tensor_fuse: bool
    case: str
    """"tiny" or "many"."""
    data_mb: float
    tensors: Annotated[int, Column("tensors")]
    iters: int
    step_ms: Annotated[StepMs, Column("step ms", chart="Time of a step")]


class StepsVariant(TensorVariant[StepsResult]):
    """One protocol."""

    first_warm_up_steps = 20
    warm_up_steps = 3

    def result(self, case: Case[Tensors], rounds: Rounds) -> StepsResult:
        return StepsResult(
            protocol=self.protocol,
            tensor_fuse=self.setting.tensor_fuse,
            case=case.name,
            data_mb=case.what.data_mb,
            tensors=case.what.count,
            iters=sum(map(len, rounds)),
            step_ms=statistics.step_ms(rounds),
        )


@dataclass(frozen=True, kw_only=True)
class Steps(Experiment[Tensors, StepsResult]):
    """Time steps that move little: one tiny tensor, and many small ones."""

    command = "bench steps"
    cases_take_turns = True

    case: str | None = option(
        None,
        "tiny: one tensor of 4 KB; many: 200 tensors of 4 KB.  [default: both]",
        choices=tuple(CASES),
    )
    iters: int = option(600, "Measured steps of each case and protocol.", least=1)
    rounds: int = rounds_option(20)

    @property
    def cases(self) -> list[Case[Tensors]]:
        steps = statistics.split(self.iters, self.rounds)
        chosen = CASES if self.case is None else (self.case,)
        return [Case(name, CASES[name], steps) for name in chosen]

    def variants(self, hosts: HostPool) -> Sequence[StepsVariant]:
        return [StepsVariant(each, hosts) for each in self.settings]


command = experiment_command(
    Steps,
    """
  tensorwire bench steps
  tensorwire bench steps --case many --tensor-fuse --json steps.json""",
    tasks="one",
)
