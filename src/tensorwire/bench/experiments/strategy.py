"""`bench strategy`: functions that a ParameterServerStrategy's coordinator schedules on a worker.

"read" sums a variable of 10 MB on the ps, so each function moves 10 MB from ps to worker. "tiny"
adds two numbers, so its time is that of scheduling: the coordinator's Python code, the messages
between coordinator and worker, and the copy of the result back.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click

from tensorwire.bench.experiments.server_task import GRPCPP, PluginTask, ServerTask
from tensorwire.bench.experiments.tensor_sides import ClusterSide
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.comparison import by_case, compared, step_cells
from tensorwire.bench.frame.comparison_options import Comparison, comparison_options
from tensorwire.bench.frame.contenders import (
    DEFAULT_SETTING,
    PROTOCOLS,
    Contender,
    Setting,
    contenders,
)
from tensorwire.bench.frame.experiment import Case, measure
from tensorwire.bench.frame.host_options import between_hosts
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.hosted_task import request
from tensorwire.bench.frame.record import Metric, Record, Result, StepMs
from tensorwire.bench.frame.showing import measure_and_show
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import Watcher
from tensorwire.bench.lab.channel import Message
from tensorwire.cli.click_extensions import options_of
from tensorwire.errors import TensorwireError
from tensorwire.options import option
from tensorwire.report.section import Bar, Bars, Section, Table
from tensorwire.units import number

READ_FLOATS = 2_500_000
"""Size of the variable that "read" sums: 10 MB."""


class CoordinatorTask(PluginTask):
    """The strategy, its coordinator, and the functions of each case."""

    def __init__(self, spec: Mapping[str, Sequence[str]], protocol: str) -> None:
        """Connects to the ps and the worker, which must be running."""
        super().__init__(needs_plugin=protocol == GRPCPP)
        tf = self._tf
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(dict(spec)), rpc_layer=protocol
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            # Random values, so that no optimizer can replace the sum by a constant.
            table = tf.Variable(tf.random.uniform([READ_FLOATS]))
        number = tf.constant(1.0)

        @tf.function  # type: ignore[untyped-decorator]
        def read() -> Any:
            return tf.reduce_sum(table)

        @tf.function  # type: ignore[untyped-decorator]
        def tiny(value: Any) -> Any:
            return value + 1.0

        # The sum of floats depends slightly on the order of the additions.
        self._cases: dict[str, tuple[Any, tuple[Any, ...], float]] = {
            "read": (read, (), float(tf.reduce_sum(table.read_value()))),
            "tiny": (tiny, (number,), 2.0),
        }

    @request
    def run(self, case: str, iters: int) -> Message:
        """Seconds from the first `schedule` of `iters` to the end of the last function.

        The results are kept, as a script keeps its losses. So each result is copied to the
        coordinator, which proves that the function has run.
        """
        function, arguments, expected = self._cases[case]
        gc.disable()
        try:
            begin = time.perf_counter()
            results = [self._coordinator.schedule(function, args=arguments) for _ in range(iters)]
            self._coordinator.join()
            seconds = time.perf_counter() - begin
        finally:
            gc.enable()
        right = all(math.isclose(r.fetch(), expected, rel_tol=1e-4) for r in results)
        return {"seconds": seconds, "right": right}


CASES: Mapping[str, float] = MappingProxyType({"read": READ_FLOATS * 4 / 1e6, "tiny": 0.0})
"""MB (10^6 bytes) that one function reads from the ps."""
FUNCTIONS: Mapping[str, int] = MappingProxyType({"read": 200, "tiny": 1000})
"""The default number of measured functions for each case."""
COMMAND = "bench strategy"
_BOTH = "both"
_WARM_UP = 20
_WARM_UP_OF_A_BLOCK = 3
_SLOWEST_FUNCTION_S = 1.0
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class StrategyResult(Result):
    """`bench strategy`: one protocol, one kind of scheduled function."""

    commands = ("bench strategy",)

    protocol: str
    case: str
    """"read" or "tiny"."""
    data_mb: float
    """MB (10^6 bytes) that each function reads from the ps."""
    iters: int
    """Measured functions."""
    functions_per_s: float
    step_ms: StepMs
    """Time of one function. Each sample is the mean over a round."""

    @property
    def metric(self) -> Metric:
        return Metric(f"Functions a second, {self.case}", self.protocol, self.functions_per_s, "/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


@dataclass(frozen=True)
class StrategyPlan:
    """One call of `bench strategy`.

    `iters`: functions of each case and protocol, over all rounds; None: `FUNCTIONS` of the case.
    """

    cases: tuple[str, ...] = option(
        tuple(CASES),
        "read: a function that sums 10 MB (of 10^6 bytes) of the ps; tiny: one that adds two "
        "numbers.",
        name="--case",
        choices=(*CASES, _BOTH),
        default_text=_BOTH,
    )
    iters: int | None = option(
        None,
        "Measured functions of each case and protocol.  [default: read 200, tiny 1000]",
        least=1,
    )
    rounds: int = 10
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    @property
    def turns(self) -> list[Case[str]]:
        return [
            Case(case, case, statistics.split(self.iters or FUNCTIONS[case], self.rounds))
            for case in self.cases
        ]

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return sum(len(case.steps) for case in self.turns)


class StrategySide(ClusterSide[str, StrategyResult]):
    """A ps, a worker and a coordinator."""

    def __init__(self, contender: Contender, host_pool: HostPool = THIS_MACHINE) -> None:
        kinds = {"ps": ServerTask, "worker": ServerTask, "chief": CoordinatorTask}
        super().__init__(contender, kinds, host_pool)
        self._functions = 0

    def _setup(self, job: str) -> Message:
        if job == "chief":
            return {"spec": self._cluster.spec, "protocol": self.protocol}
        return super()._setup(job)

    def warm_up(self, case: str) -> None:
        self._run(case, _WARM_UP)

    def block(self, case: str, functions: int | None) -> list[float]:
        count = functions or 1
        self._run(case, _WARM_UP_OF_A_BLOCK)
        return [self._run(case, count) / count]

    def _run(self, case: str, functions: int) -> float:
        self._functions += functions
        measured = self._ask(
            "chief",
            {"do": "run", "case": case, "iters": functions},
            _TIMEOUT_S + functions * _SLOWEST_FUNCTION_S,
        )
        if not measured["right"]:
            raise TensorwireError(
                f"a scheduled function returned a wrong result over {self.protocol}: "
                "its results are invalid"
            )
        return float(measured["seconds"])

    def verify(self, case: str) -> None:
        """Raises TensorwireError unless the functions used this protocol.

        The results would be invalid if they used another one.
        """
        served = int(self._ask("worker", {"do": "wire"}).get("eager_calls", 0))
        if self.protocol == GRPCPP and served < self._functions:
            raise TensorwireError(
                f"only {served} calls of {self._functions} functions arrived over grpc++: "
                "its results are invalid"
            )

    def result(self, case: Case[str], rounds: Rounds) -> StrategyResult:
        return StrategyResult(
            protocol=self.protocol,
            case=case.name,
            data_mb=CASES[case.name],
            iters=sum(steps or 1 for steps in case.steps),
            functions_per_s=1 / statistics.typical_s(rounds),
            step_ms=statistics.step_ms(rounds),
        )


def run(
    plan: StrategyPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[StrategyResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    sides = [StrategySide(each, host_pool) for each in contenders(plan.protocols, plan.setting)]
    return measure(COMMAND, sides, plan.turns, watcher, lab=host_pool.document)


@click.command(
    "strategy",
    epilog="""\b
Examples:
  tensorwire bench strategy
  tensorwire bench strategy --case tiny --iters 5000 --json strategy.json""",
)
@options_of(StrategyPlan)
@comparison_options(default_rounds=10, tensor_fuse=False)
@between_hosts(COMMAND)
def command(*, comparison: Comparison, cases: str, **options: Any) -> None:
    """Schedule functions with a ParameterServerStrategy: how many a worker runs in a second."""
    chosen = tuple(CASES) if cases == _BOTH else (cases,)
    plan = StrategyPlan(chosen, **options, **comparison.of_plan)
    measure_and_show(COMMAND, plan, run, comparison)


def _section(record: Record[StrategyResult]) -> Section:
    table = Table(
        "Functions that a ParameterServerStrategy schedules on one worker (MB = 10^6 bytes)",
        ["case", "protocol", "MB read", "functions/s", "ms p50", "p90", "min"],
        [
            [
                [
                    case,
                    r.protocol,
                    number(r.data_mb),
                    number(r.functions_per_s),
                    *step_cells(r.step_ms),
                ]
                for r in rows
            ]
            for case, rows in by_case(record.results)
        ],
        text_columns=2,
    )
    charts = [
        Bars(
            f"Functions a second, {case}",
            "/s",
            [Bar(r.protocol, r.functions_per_s, r.protocol) for r in rows],
        )
        for case, rows in by_case(record.results)
    ]
    headline = compared(record.ratios, "runs a coordinator's functions")
    return Section("ParameterServerStrategy", headline, charts, [table])
