"""`bench strategy`: functions that a ParameterServerStrategy's coordinator schedules on a worker.

"read" sums a variable of 10 MB that lives on the ps, so each function moves 10 MB from ps to
worker; "tiny" adds two numbers, so the time is that of scheduling itself: the coordinator's Python,
the messages between it and the worker, and the copy of the result back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tensorwire.bench.strategy_task import READ_FLOATS
from tensorwire.bench.tensor_sides import Side
from tensorwire.errors import TensorwireError
from tensorwire.measure import statistics
from tensorwire.measure.comparison import by_side_and_case, compare_cases
from tensorwire.measure.contenders import DEFAULT_SETTING, PROTOCOLS, Contender, Setting, contenders
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.noise import NoiseWatch
from tensorwire.measure.record import Metric, Record, Result, StepMs
from tensorwire.measure.section import Bar, Bars, Section, Table
from tensorwire.measure.tasks import Watcher
from tensorwire.measure.views import by_case, compared, step_cells
from tensorwire.units import number


@dataclass(frozen=True)
class StrategyResult(Result):
    """`bench strategy`: one protocol, one kind of scheduled function."""

    commands = ("bench strategy",)

    protocol: str
    case: str
    """"read" or "tiny"."""
    data_mb: float
    """Read from the ps by each function."""
    iters: int
    """Measured functions."""
    functions_per_s: float
    step_ms: StepMs
    """Of one function, from round to round: each figure is the mean of a round."""

    @property
    def metric(self) -> Metric:
        return Metric(f"Functions a second, {self.case}", self.protocol, self.functions_per_s, "/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


CASES: Mapping[str, float] = MappingProxyType({"read": READ_FLOATS * 4 / 1e6, "tiny": 0.0})
"""MB (10^6 bytes) that one function reads from the ps."""
FUNCTIONS: Mapping[str, int] = MappingProxyType({"read": 200, "tiny": 1000})
"""Of each case how many are measured, unless one says otherwise."""
_WARM_UP = 20
_WARM_UP_OF_A_BLOCK = 3
_SLOWEST_FUNCTION_S = 1.0
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class StrategyPlan:
    """One call of `bench strategy`.

    `iters` functions for each case and protocol over all rounds; None: `FUNCTIONS` of each case.
    """

    cases: tuple[str, ...] = tuple(CASES)
    iters: int | None = None
    rounds: int = 10
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    def shares(self, case: str) -> list[int]:
        """Functions of each round."""
        return statistics.split(self.iters or FUNCTIONS[case], self.rounds)

    @property
    def blocks(self) -> int:
        """How often the watcher is advanced."""
        return sum(len(self.shares(case)) for case in self.cases)


class StrategySide(Side):
    """A ps, a worker and a coordinator."""

    def __init__(self, contender: Contender, host_pool: HostPool = THIS_MACHINE) -> None:
        modules = {
            "ps": "bench.tensor_task",
            "worker": "bench.tensor_task",
            "chief": "bench.strategy_task",
        }
        super().__init__(contender, modules, host_pool)
        self._functions = 0

    def block(self, case: str, iters: int, warm_up: int) -> float:
        """Runs `warm_up` functions that do not count, then `iters`; seconds of each of these."""
        self._functions += warm_up + iters
        timeout_s = _TIMEOUT_S + max(iters, warm_up) * _SLOWEST_FUNCTION_S
        run = {"do": "run", "case": case}
        self._ask("chief", {**run, "iters": warm_up}, timeout_s)
        measured = self._ask("chief", {**run, "iters": iters}, timeout_s)
        if not measured["right"]:
            raise TensorwireError(
                f"a scheduled function gave a wrong result over {self.protocol}: "
                "its figures mean nothing"
            )
        return float(measured["seconds"]) / iters

    def verify(self) -> None:
        """Raises TensorwireError unless the functions ran by this protocol.

        Those that took another way would make these the figures of that way.
        """
        served = int(self._ask("worker", {"do": "wire"}).get("eager_calls", 0))
        if self.protocol == "grpc++" and served < self._functions:
            raise TensorwireError(
                f"only {served} calls of {self._functions} functions came over grpc++: "
                "its figures mean nothing"
            )


def run(
    plan: StrategyPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[StrategyResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    With one case the ratio is called "grpc++/grpc"; with both, "grpc++/grpc tiny" and so on.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    noise = NoiseWatch()
    rounds: dict[str, dict[str, list[list[float]]]] = {
        case: {name: [] for name in plan.protocols} for case in plan.cases
    }
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        sides = [
            stack.enter_context(StrategySide(contender, host_pool))
            for contender in contenders(plan.protocols, plan.setting)
        ]
        for side in sides:
            side.wait_started(watcher)
        for case in plan.cases:
            watcher.activity(f"warming up: {case}")
            for side in sides:
                side.block(case, iters=1, warm_up=_WARM_UP)
            watcher.activity(f"measuring: {case}")
            for iters in plan.shares(case):
                for side in sides:
                    seconds = side.block(case, iters, _WARM_UP_OF_A_BLOCK)
                    rounds[case][side.protocol].append([seconds])
                watcher.advance()
        for side in sides:
            side.verify()
        tensorflow = sides[0].tensorflow
    results = [
        StrategyResult(
            protocol=name,
            case=case,
            data_mb=CASES[case],
            iters=sum(plan.shares(case)),
            functions_per_s=1 / statistics.typical_s(rounds[case][name]),
            step_ms=statistics.step_ms(rounds[case][name]),
        )
        for case in plan.cases
        for name in plan.protocols
    ]
    return Record(
        command="bench strategy",
        tensorflow=tensorflow,
        results=results,
        ratios=compare_cases(rounds),
        noise=noise.seen(by_side_and_case(rounds)),
        lab=host_pool.document,
    )


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
