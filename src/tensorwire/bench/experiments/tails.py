"""`bench tails`: the time of small steps while another worker sends large tensors to the same ps.

In the case "alone" one worker assigns a tensor of 4 KB repeatedly. In the case "beside bulk" a
second worker assigns a large tensor to the same ps without pause. The slowest steps (p99, p99.9)
and the lower step rate are what slows a job down. Without TensorFlow (`layer` "rpc") a step is a
request of 4 KB, and the bulk consists of large requests.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeoutError
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from tensorwire.bench.experiments.raw import Load, RpcTask, connect_ends
from tensorwire.bench.experiments.steps import CASES as STEP_CASES
from tensorwire.bench.experiments.tensors import ClusterVariant, Tensors, TensorTask
from tensorwire.bench.frame.columns import Column, Percentiles
from tensorwire.bench.frame.experiment import Case, Experiment
from tensorwire.bench.frame.hosts import THIS_MACHINE, HostPool
from tensorwire.bench.frame.options import experiment_command
from tensorwire.bench.frame.record import Record, Result, words
from tensorwire.bench.frame.statistics import Rounds, compare_cases, percentiles
from tensorwire.bench.frame.tasks import HostedTask, Watcher, request
from tensorwire.bench.frame.variants import Setting
from tensorwire.bench.lab.channel import Message
from tensorwire.cli.options import CLIENT, SERVER
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.report.section import Section

LAYERS = ("tensorflow", "rpc")
ALONE, BESIDE_BULK = CASES = ("alone", "beside bulk")
_SMALL = STEP_CASES["tiny"]
_PATIENCE_S = 120.0
_CHUNK = 8  # requests between two readings of the clock
_BULK = "bulk"


@dataclass(frozen=True)
class TailMs(Percentiles):
    """Percentiles of the time of a small step, in milliseconds, over every measured step."""

    unit = "ms"
    bar = ("p50", "p99", "p999")
    caption = "p99, and a line from the median to p99.9; shorter is better."

    p50: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True)
class TailsResult(Result):
    """`bench tails`: one protocol, alone or beside bulk."""

    commands = ("bench tails",)
    more_rounds_by = "--rounds and --seconds"
    figure = "step_ms"
    less_is_better = True
    group = words("{0.case}")

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
    steps_per_s: Annotated[float, Column("steps/s")]
    step_ms: Annotated[TailMs, Column("ms", chart="Time of a small step")]
    bulk_mb_per_s: Annotated[float | None, Column("bulk MB/s")]
    """Rate of the bulk; None in the case "alone"."""

    @property
    def title(self) -> str:
        what = "request" if self.layer == "rpc" else "step"
        return f"A {what} of 4 KB, alone and beside another worker's tensors of {self.bulk_mb:g} MB"

    @property
    def of(self) -> str:
        beside = ALONE if self.bulk_mb_per_s is None else f"beside {self.bulk_mb:g} MB"
        return f"p99 of a {self.layer} step of 4 KB, {beside}"

    @classmethod
    def section(cls, record: Record[Any]) -> Section:
        ratio = record.ratios.get(f"grpc++/grpc p99 {BESIDE_BULK}")
        headline = ""
        if ratio is not None:
            headline = (
                f"Beside tensors of {record.results[0].bulk_mb:g} MB, 99 of 100 small steps end "
                f"within {1 / ratio.value:.2f} times the time of grpc's."
            )
        return dataclasses.replace(super().section(record), headline=headline)


class _LoadTask(HostedTask):
    """A client that runs small steps for a given time, or bulk steps until it is ended."""

    _loop: Future[Message] | None = None

    @abc.abstractmethod
    def times(self, case: str) -> Sequence[float]:
        """Runs one or several steps, or one large tensor; returns the seconds of each."""

    @request
    def run_for(self, case: str, seconds: float) -> Message:
        """Runs steps for `seconds`; returns the seconds of each step."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            times.extend(self.times(case))
        return {"step_s": times}

    @request
    def begin(self, case: str) -> Message:
        """Runs steps in a thread until `end`."""
        self._ended = threading.Event()
        self._loop = ThreadPoolExecutor(1).submit(self._run_until_end, case)
        return {}

    def _run_until_end(self, case: str) -> Message:
        began, count = time.perf_counter(), 0
        while not self._ended.is_set():
            count += len(self.times(case))
        return {"count": count, "seconds": time.perf_counter() - began}

    @request
    def end(self) -> Message:
        """Ends the steps of `begin`; returns their number and seconds."""
        assert self._loop is not None
        self._ended.set()
        try:
            return self._loop.result(_PATIENCE_S)
        except WaitTimeoutError as error:
            raise TensorwireError(f"the bulk did not end within {_PATIENCE_S:.0f} s") from error


class TailsTask(TensorTask, _LoadTask):
    """A ps or a worker of TensorFlow."""

    def times(self, case: str) -> Sequence[float]:
        session, op, _ = self._cases[case]
        begin = time.perf_counter()
        session.run(op)
        return [time.perf_counter() - begin]


class TailsRpcTask(RpcTask, _LoadTask):
    """A server or a client without TensorFlow, which is asked the same as a worker."""

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of a request in each case."""
        return {}

    @request
    def build(self, case: str, tensors: int, floats: int) -> Message:
        self._sizes[case] = 4 * tensors * floats
        return {}

    @request
    def verify(self, case: str) -> Message:
        return {"equal": True}  # each request has been answered

    @request
    def wire(self) -> Message:
        return {}  # no plug-in, and no pool whose memory could be lent

    def times(self, case: str) -> Sequence[float]:
        requests = 1 if case == _BULK else _CHUNK
        _, latency_us = self._end.ask(Load(requests, 1, self._sizes[case], 0, _PATIENCE_S))
        return [float(us) / 1e6 for us in latency_us]


class TailsVariant(ClusterVariant[bool, TailsResult]):
    """One protocol: a server, a client with small steps, and a client with bulk."""

    kind: type[_LoadTask] = TailsTask
    server = "ps"
    small = "worker"
    """The job of the client with small steps."""

    def __init__(self, setting: Setting, plan: Tails, hosts: HostPool = THIS_MACHINE) -> None:
        jobs = (self.server, self.small, _BULK)
        super().__init__(setting, dict.fromkeys(jobs, self.kind), hosts)
        self._plan = plan
        self.times: dict[bool, list[list[float]]] = {False: [], True: []}
        self.bulk_s: list[list[float]] = []
        """Mean seconds of a large tensor in each round with bulk."""

    def connect(self) -> None:
        """Connects the clients; workers of TensorFlow do so themselves."""

    def wait_started(self, watcher: Watcher) -> None:
        super().wait_started(watcher)
        self.connect()
        large = Tensors(_BULK, 1, round(self._plan.data_mb * 1e6 / 4))
        for job, tensors in ((self.small, _SMALL), (_BULK, large)):
            self.ask(job, "build", tensors.timeout_s(4), **tensors.build_arguments)

    def warm_up(self, what: bool) -> None:
        for job, case in ((self.small, _SMALL.name), (_BULK, _BULK)):
            self.ask(job, "run_for", case=case, seconds=0.2)

    def block(self, what: bool, steps: int | None) -> list[float]:
        seconds = self._plan.seconds
        if what:
            self.ask(_BULK, "begin", case=_BULK)
        run = self.ask(
            self.small, "run_for", _PATIENCE_S + seconds, case=_SMALL.name, seconds=seconds
        )
        if what:
            bulk = self.ask(_BULK, "end", 2 * _PATIENCE_S)
            if not bulk["count"]:
                raise TensorwireError("no large tensor arrived in a round: increase --seconds")
            self.bulk_s.append([bulk["seconds"] / bulk["count"]])
        self.times[what].append(run["step_s"])
        return [float(np.mean(run["step_s"]))]

    def verify(self, what: bool) -> None:
        """Raises TensorwireError unless the ps has the values that both workers sent."""
        for job, case in ((self.small, _SMALL.name), (_BULK, _BULK)):
            if not self.ask(job, "verify", case=case)["equal"]:
                raise TensorwireError(
                    f"the ps does not have the values that {job} sent over {self.protocol}: "
                    "its results are invalid"
                )

    def result(self, case: Case[bool], rounds: Rounds) -> TailsResult:
        times = self.times[case.what]
        bulk_s = float(np.median(self.bulk_s)) if case.what else None
        return TailsResult(
            protocol=self.protocol,
            tensor_fuse=self.setting.tensor_fuse,
            layer=self._plan.layer,
            case=case.name,
            bulk_mb=self._plan.data_mb,
            steps=sum(map(len, times)),
            steps_per_s=1 / float(np.median(rounds)),
            step_ms=percentiles(TailMs, times, 1e3),
            bulk_mb_per_s=None if bulk_s is None else self._plan.data_mb / bulk_s,
        )


class TailsRpcVariant(TailsVariant):
    """Only the engine or gRPC, without TensorFlow: a step is a request that the server discards."""

    kind = TailsRpcTask
    server = SERVER
    small = CLIENT

    def setup(self, job: str, index: int) -> Message:
        return {"protocol": self.protocol}

    def connect(self) -> None:
        clients = (CLIENT, _BULK)
        threads = len(clients)
        connect_ends(self, self.protocol, clients, threads=threads, response_size=0, channels=1)


@dataclass(frozen=True, kw_only=True)
class Tails(Experiment[bool, TailsResult]):
    """Time small steps while another worker moves large tensors.

    One worker assigns a tensor of 4 KB to a ps repeatedly: alone, and while a second worker assigns
    a large tensor to the same ps without pause. Shown are the median, p99 and p99.9 of the small
    steps, and the rate of the large tensors.
    """

    command = "bench tails"
    cases_take_turns = True

    layer: str = option(
        "tensorflow",
        "tensorflow: steps of a session; rpc: requests without TensorFlow.",
        choices=LAYERS,
    )
    data_mb: float = option(
        100.0, "MB (10^6 bytes) of a tensor of the other worker.", least=1, most=1000
    )
    seconds: float = option(
        1.0, "Time of the small steps in each round, case and protocol.", least=0.1, most=600
    )

    def __post_init__(self) -> None:
        if self.layer == "rpc" and self.rewrites:
            raise UsageError("--layer rpc has no graph to rewrite: leave out the rewrites")

    @property
    def cases(self) -> list[Case[bool]]:
        return [Case(name, name != ALONE, [None] * self.rounds) for name in CASES]

    def variants(self, hosts: HostPool) -> Sequence[TailsVariant]:
        kind = TailsVariant if self.layer == "tensorflow" else TailsRpcVariant
        return [kind(each, self, hosts) for each in self.settings]

    def more_ratios(self, variants: Sequence[Any]) -> dict[str, Any]:
        """The p99 of small steps with bulk, and the rate of the bulk."""
        p99 = {
            each.name: [[float(np.percentile(times, 99))] for times in each.times[True]]
            for each in variants
        }
        bulk = {each.name: each.bulk_s for each in variants}
        return dict(compare_cases({f"p99 {BESIDE_BULK}": p99, "MB/s of the bulk": bulk}))


command = experiment_command(
    Tails,
    """
  tensorwire bench tails
  tensorwire bench tails --layer rpc --lab hosts=3,rate=10gbit""",
)
