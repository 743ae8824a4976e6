"""`bench tails`: the time of small steps while another worker sends large tensors to the same ps.

In the case "alone" one worker assigns a tensor of 4 KB repeatedly. In the case "beside bulk" a
second worker assigns a large tensor to the same ps without pause. The slowest steps (p99, p99.9)
and the lower step rate are what slows a job down. Without TensorFlow (`layer` "rpc") a step is a
request of 4 KB, and the bulk consists of large requests.
"""

from __future__ import annotations

import abc
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click
import numpy as np

from tensorwire.bench.experiments.raw_task import RpcTask, port_of
from tensorwire.bench.experiments.steps import CASES as STEP_CASES
from tensorwire.bench.experiments.tensor_sides import (
    ClusterSide,
    Tensors,
    TensorTask,
    request_timeout_s,
)
from tensorwire.bench.frame.comparison import by_case, compare_cases
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
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.hosted_task import HostedTask, request
from tensorwire.bench.frame.record import Metric, Record, Result
from tensorwire.bench.frame.showing import measure_and_show
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import Watcher, wait_ready
from tensorwire.bench.lab.channel import Message
from tensorwire.cli.click_extensions import options_of
from tensorwire.cli.two_ends import CLIENT, SERVER
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.report.section import Bar, Bars, Section, Table
from tensorwire.units import number

COMMAND = "bench tails"
LAYERS = ("tensorflow", "rpc")
CASES = ("alone", "beside bulk")
_SMALL = STEP_CASES["tiny"]
_SMALL_BYTES = round(_SMALL.data_mb * 1e6)
_PATIENCE_S = 120.0
_CHUNK = 8  # requests between two readings of the clock
_SERVER_THREADS = 2  # one for each client
_BULK = "bulk"


@dataclass(frozen=True)
class TailMs:
    """Percentiles of the time of a small step, in milliseconds, over every measured step."""

    p50: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True)
class TailsResult(Result):
    """`bench tails`: one protocol, alone or beside bulk."""

    commands = ("bench tails",)
    more_rounds_by = "--rounds and --seconds"

    protocol: str
    tensor_fuse: bool
    layer: str
    """"tensorflow" or "rpc"."""
    case: str
    """"alone" or "beside bulk"."""
    bulk_mb: float
    """MB (10^6 bytes) of a tensor of the bulk."""
    steps: int
    """Measured small steps."""
    steps_per_s: float
    step_ms: TailMs
    bulk_mb_per_s: float | None
    """Rate of the bulk; None in the case "alone"."""

    @property
    def metric(self) -> Metric:
        side = side_name(self.protocol, self.tensor_fuse)
        beside = "alone" if self.bulk_mb_per_s is None else f"beside {self.bulk_mb:g} MB"
        of = f"p99 of a {self.layer} step of 4 KB, {beside}"
        return Metric(of, side, self.step_ms.p99, "ms", more_is_better=False)

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


@dataclass(frozen=True)
class TailsPlan:
    """One call of `bench tails`; `seconds` of small steps in each round of each case and side."""

    layer: str = option(
        "tensorflow",
        "tensorflow: steps of a session; rpc: requests without TensorFlow.",
        choices=LAYERS,
    )
    bulk_mb: float = option(100.0, "MB (10^6 bytes) of a tensor of the other worker.")
    seconds: float = option(
        1.0, "Time of the small steps in each round, case and protocol.", least=0.1, most=600
    )
    rounds: int = 10
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    def __post_init__(self) -> None:
        """Raises UsageError for settings that cannot be measured."""
        if not 1 <= self.bulk_mb <= 1000:
            raise UsageError(f"--bulk-mb {self.bulk_mb:g}: give a number from 1 to 1000")
        if self.layer == "rpc" and self.setting.rewrites:
            raise UsageError("--layer rpc has no graph to rewrite: leave out the rewrites")

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return contenders(self.protocols, self.setting)

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return len(CASES) * self.rounds


class _Loop:
    """Calls a function repeatedly in a thread until `end` is called."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._count = 0
        self._began = time.perf_counter()
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def _go(self) -> None:
        try:
            while not self._ended.is_set():
                self._run()
                self._count += 1
        except Exception as error:  # `end` raises it in the caller's thread
            self._error = error

    def end(self) -> Message:
        """Ends the loop; returns the number of calls and the seconds."""
        self._ended.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            raise TensorwireError(f"the bulk did not end within {_PATIENCE_S:.0f} s")
        if self._error is not None:
            raise self._error
        return {"count": self._count, "seconds": time.perf_counter() - self._began}


class _LoadTask(HostedTask):
    """A client that runs small steps for a given time, or bulk steps until it is ended."""

    _loop: _Loop | None = None

    @abc.abstractmethod
    def _step(self, case: str) -> None:
        """One step, or one large tensor."""

    def _times(self, case: str) -> Sequence[float]:
        begin = time.perf_counter()
        self._step(case)
        return [time.perf_counter() - begin]

    @request
    def run_for(self, case: str, seconds: float) -> Message:
        """Runs steps for `seconds`; returns the seconds of each step."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            times.extend(self._times(case))
        return {"step_s": times}

    @request
    def begin(self, case: str) -> Message:
        self._loop = _Loop(lambda: self._step(case))
        return {}

    @request
    def end(self) -> Message:
        assert self._loop is not None
        return self._loop.end()


class TailsTask(TensorTask, _LoadTask):
    """A ps or a worker of TensorFlow."""

    def _step(self, case: str) -> None:
        session, op, _ = self._cases[case]
        session.run(op)


class TailsRpcTask(RpcTask, _LoadTask):
    """A server or a client without TensorFlow."""

    _sizes: Mapping[str, int] = MappingProxyType({})

    @request
    def sizes(self, sizes: Mapping[str, int]) -> Message:
        """Sets the bytes of a request in each case."""
        self._sizes = dict(sizes)
        return {}

    def _step(self, case: str) -> None:
        self._end.ask(1, 1, self._sizes[case], 0, _PATIENCE_S)

    def _times(self, case: str) -> Sequence[float]:
        _, latency_us = self._end.ask(_CHUNK, 1, self._sizes[case], 0, _PATIENCE_S)
        return [float(us) / 1e6 for us in latency_us]


class _TailsSide(ClusterSide[bool, TailsResult]):
    """One protocol: a server, a client with small steps, and a client with bulk."""

    _kind: type[_LoadTask]
    _server: str
    _small: str
    """The job of the client with small steps."""

    def __init__(self, contender: Contender, plan: TailsPlan, host_pool: HostPool) -> None:
        jobs = (self._server, self._small, _BULK)
        super().__init__(contender, dict.fromkeys(jobs, self._kind), host_pool)
        self._plan = plan
        self.times: dict[bool, list[list[float]]] = {False: [], True: []}
        self.bulk_s: list[list[float]] = []
        """Mean seconds of a large tensor in each round with bulk."""

    def warm_up(self, what: bool) -> None:
        for job, case in ((self._small, _SMALL.name), (_BULK, _BULK)):
            self._ask(job, {"do": "run_for", "case": case, "seconds": 0.2})

    def block(self, what: bool, steps: int | None) -> list[float]:
        if what:
            self._ask(_BULK, {"do": "begin", "case": _BULK})
        seconds = self._plan.seconds
        run = {"do": "run_for", "case": _SMALL.name, "seconds": seconds}
        times = self._ask(self._small, run, _PATIENCE_S + seconds)["step_s"]
        if what:
            bulk = self._ask(_BULK, {"do": "end"}, 2 * _PATIENCE_S)
            if not bulk["count"]:
                raise TensorwireError("no large tensor arrived in a round: increase --seconds")
            self.bulk_s.append([bulk["seconds"] / bulk["count"]])
        self.times[what].append(times)
        return [float(np.mean(times))]

    def result(self, case: Case[bool], rounds: Rounds) -> TailsResult:
        times = np.concatenate(self.times[case.what])
        p50, p99, p999 = np.percentile(times, [50, 99, 99.9]) * 1e3
        bulk_s = float(np.median(self.bulk_s)) if case.what else None
        return TailsResult(
            protocol=self.protocol,
            tensor_fuse=self.contender.setting.tensor_fuse,
            layer=self._plan.layer,
            case=case.name,
            bulk_mb=self._plan.bulk_mb,
            steps=len(times),
            steps_per_s=1 / float(np.median(rounds)),
            step_ms=TailMs(float(p50), float(p99), float(p999), float(times.max() * 1e3)),
            bulk_mb_per_s=None if bulk_s is None else self._plan.bulk_mb / bulk_s,
        )


class TensorFlowSide(_TailsSide):
    """Tasks of TensorFlow: a step assigns one tensor, worker to ps."""

    _kind = TailsTask
    _server = "ps"
    _small = "worker"

    def wait_started(self, watcher: Watcher) -> None:
        super().wait_started(watcher)
        large = Tensors(_BULK, 1, round(self._plan.bulk_mb * 1e6 / 4))
        for job, tensors in ((self._small, _SMALL), (_BULK, large)):
            self._ask(job, tensors.build_request, request_timeout_s(tensors, 4))

    def verify(self, what: bool) -> None:
        """Raises TensorwireError unless the ps has the values that both workers sent."""
        for job, case in ((self._small, _SMALL.name), (_BULK, _BULK)):
            if not self._ask(job, {"do": "verify", "case": case})["equal"]:
                raise TensorwireError(
                    f"the ps does not have the values that {job} sent over {self.protocol}: "
                    "its results are invalid"
                )


class RpcSide(_TailsSide):
    """Only the engine or gRPC, without TensorFlow: a step is a request that the server discards."""

    _kind = TailsRpcTask
    _server = SERVER
    _small = CLIENT

    def _setup(self, job: str) -> Message:
        return {"protocol": self.protocol}

    def transport(self) -> str:
        return "TCP"  # these tasks have no plug-in, and no pool whose memory could be lent

    def wait_started(self, watcher: Watcher) -> None:
        for process in self._processes.values():
            wait_ready(self._cluster, process, watcher)
        host, port = split_address(self.address(SERVER))
        port = port_of(self.protocol, port)
        serve = {"do": "serve", "host": host, "port": port, "threads": _SERVER_THREADS}
        self._ask(SERVER, {**serve, "response_size": 0})
        sizes = {_SMALL.name: _SMALL_BYTES, _BULK: round(self._plan.bulk_mb * 1e6)}
        for job in (CLIENT, _BULK):
            self._ask(job, {"do": "connect", "address": f"{host}:{port}", "channels": 1})
            self._ask(job, {"do": "sizes", "sizes": sizes})


def run(
    plan: TailsPlan, watcher: Watcher, host_pool: HostPool = THIS_MACHINE
) -> Record[TailsResult]:
    """Measures; `watcher.advance` is called `plan.blocks` times.

    The ratios compare the rate of small steps in each case, their p99 with bulk, and the rate of
    the bulk.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    kind = TensorFlowSide if plan.layer == "tensorflow" else RpcSide
    sides = [kind(each, plan, host_pool) for each in plan.contenders]
    cases = [Case(name, name != "alone", [None] * plan.rounds) for name in CASES]
    record = measure(COMMAND, sides, cases, watcher, lab=host_pool.document, cases_take_turns=True)
    more = compare_cases(
        {
            "p99 beside bulk": {
                side.name: [[float(np.percentile(times, 99))] for times in side.times[True]]
                for side in sides
            },
            "MB/s of the bulk": {side.name: side.bulk_s for side in sides},
        }
    )
    return dataclasses.replace(record, ratios={**record.ratios, **more})


@click.command(
    "tails",
    epilog="""\b
Examples:
  tensorwire bench tails
  tensorwire bench tails --layer rpc --lab hosts=3,rate=10gbit""",
)
@options_of(TailsPlan)
@comparison_options(default_rounds=10)
def command(*, comparison: Comparison, **options: Any) -> None:
    """Time small steps while another worker moves large tensors.

    One worker assigns a tensor of 4 KB to a ps repeatedly: alone, and while a second worker assigns
    a large tensor to the same ps without pause. Shown are the median, p99 and p99.9 of the small
    steps, and the rate of the large tensors.
    """
    measure_and_show(COMMAND, TailsPlan(**options, **comparison.of_plan), run, comparison)


def _section(record: Record[TailsResult]) -> Section:
    first = record.results[0]
    what = "request" if first.layer == "rpc" else "step"
    table = Table(
        f"A {what} of 4 KB, alone and beside another worker's tensors of {first.bulk_mb:g} MB",
        ["case", "protocol", f"{what}s/s", "p50 ms", "p99", "p99.9", "max", "bulk MB/s"],
        [
            [
                [
                    case,
                    side_name(r.protocol, r.tensor_fuse),
                    number(r.steps_per_s),
                    *map(number, (r.step_ms.p50, r.step_ms.p99, r.step_ms.p999, r.step_ms.max)),
                    "-" if r.bulk_mb_per_s is None else number(r.bulk_mb_per_s),
                ]
                for r in rows
            ]
            for case, rows in by_case(record.results)
        ],
        text_columns=2,
    )
    charts = [
        Bars(
            f"Time of a {what}, {case}",
            "ms",
            [
                Bar(
                    name := side_name(r.protocol, r.tensor_fuse),
                    r.step_ms.p99,
                    name,
                    low=r.step_ms.p50,
                    high=r.step_ms.p999,
                )
                for r in rows
            ],
            "p99, and a line from the median to p99.9; shorter is better.",
        )
        for case, rows in by_case(record.results)
    ]
    return Section("Tails", _headline(record), charts, [table])


def _headline(record: Record[TailsResult]) -> str:
    ratio = record.ratios.get("grpc++/grpc p99 beside bulk")
    if ratio is None:
        return ""
    return (
        f"Beside tensors of {record.results[0].bulk_mb:g} MB, 99 of 100 small steps end within "
        f"{1 / ratio.value:.2f} times the time of grpc's."
    )
