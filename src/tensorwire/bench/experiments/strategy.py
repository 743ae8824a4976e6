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
from typing import Annotated, Any

from tensorwire.bench.experiments.tensors import GRPCPP, ClusterVariant, PluginTask, ServerTask
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.columns import Column, StepMs
from tensorwire.bench.frame.experiment import Case, Experiment
from tensorwire.bench.frame.hosts import HostPool
from tensorwire.bench.frame.options import experiment_command
from tensorwire.bench.frame.record import Result, words
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.tasks import patience_s, request
from tensorwire.bench.frame.variants import Setting
from tensorwire.bench.lab.channel import Message
from tensorwire.errors import TensorwireError
from tensorwire.options import option

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
_BOTH = "both"
_WARM_UP = 20
_WARM_UP_OF_A_BLOCK = 3


@dataclass(frozen=True)
class StrategyResult(Result):
    """`bench strategy`: one protocol, one kind of scheduled function."""

    commands = ("bench strategy",)
    figure = "functions_per_s"
    title = "Functions that a ParameterServerStrategy schedules on one worker (MB = 10^6 bytes)"
    does = "runs a coordinator's functions"
    group = words("{0.case}")
    of = words("Functions a second, {0.case}")

    protocol: str
    case: str
    """"read" or "tiny"."""
    data_mb: Annotated[float, Column("MB read")]
    """MB (10^6 bytes) that each function reads from the ps."""
    iters: int
    """Measured functions."""
    functions_per_s: Annotated[float, Column("functions/s", "/s", chart="Functions a second")]
    step_ms: Annotated[StepMs, Column("ms")]
    """Time of one function. Each sample is the mean over a round."""


class StrategyVariant(ClusterVariant[str, StrategyResult]):
    """A ps, a worker and a coordinator."""

    def __init__(self, setting: Setting, hosts: HostPool) -> None:
        kinds = {"ps": ServerTask, "worker": ServerTask, "chief": CoordinatorTask}
        super().__init__(setting, kinds, hosts)
        self._functions = 0

    def setup(self, job: str, index: int) -> Message:
        if job == "chief":
            return {"spec": self.cluster.spec, "protocol": self.protocol}
        return super().setup(job, index)

    def warm_up(self, case: str) -> None:
        self._run(case, _WARM_UP)

    def block(self, case: str, functions: int | None) -> list[float]:
        count = functions or 1
        self._run(case, _WARM_UP_OF_A_BLOCK)
        return [self._run(case, count) / count]

    def _run(self, case: str, functions: int) -> float:
        self._functions += functions
        timeout_s = patience_s(steps=functions)
        measured = self.ask("chief", "run", timeout_s, case=case, iters=functions)
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
        served = int(self.ask("worker", "wire").get("eager_calls", 0))
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


@dataclass(frozen=True, kw_only=True)
class Strategy(Experiment[str, StrategyResult]):
    """Schedule functions with a ParameterServerStrategy: how many a worker runs in a second."""

    command = "bench strategy"
    takes = frozenset({"protocols", "lab", "transport"})

    case: str = option(
        _BOTH,
        "read: a function that sums 10 MB (of 10^6 bytes) of the ps; tiny: one that adds two "
        "numbers.",
        choices=(*CASES, _BOTH),
    )
    iters: int | None = option(
        None,
        "Measured functions of each case and protocol.  [default: read 200, tiny 1000]",
        least=1,
    )
    """Over all rounds; None: `FUNCTIONS` of the case."""

    @property
    def cases(self) -> list[Case[str]]:
        return [
            Case(case, case, statistics.split(self.iters or FUNCTIONS[case], self.rounds))
            for case in (CASES if self.case == _BOTH else (self.case,))
        ]

    def variants(self, hosts: HostPool) -> Sequence[StrategyVariant]:
        return [StrategyVariant(each, hosts) for each in self.settings]


command = experiment_command(
    Strategy,
    """
  tensorwire bench strategy
  tensorwire bench strategy --case tiny --iters 5000 --json strategy.json""",
    tasks="one",
)
