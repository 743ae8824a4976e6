"""Steps and examples a second of a model, trained by ps and workers on this machine.

Each contender has a cluster of its own, and all clusters live at once, but only one trains at a
time, in turns of a few seconds: what else the machine does meets all of them alike, and a ratio
holds on a noisy machine. The first turn of each is a warm-up and is not counted.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.bench.models import MODELS, examples
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.lab.channel import ChannelClosed, Message
from tensorwire.lab.local import LocalCluster, Task
from tensorwire.measure.comparison import compare, times
from tensorwire.measure.contenders import (
    DEFAULT_SETTING,
    PAIRS,
    PROTOCOLS,
    Contender,
    Setting,
    contenders,
    side_name,
)
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.noise import NoiseWatch
from tensorwire.measure.record import Metric, Ratio, Record, Result
from tensorwire.measure.section import Bar, Bars, Section, Table
from tensorwire.measure.statistics import typical_s
from tensorwire.measure.tasks import answer, task_argv, wait_started
from tensorwire.plugin.tensorflow_install import check_installed
from tensorwire.units import number


@dataclass(frozen=True)
class TrainResult(Result):
    """`bench train` and `demo`: one protocol training one model."""

    commands = (
        "bench train",
        "demo",
    )
    more_rounds_by = "--steps"

    protocol: str
    tensor_fuse: bool
    model: str
    steps: int
    steps_per_s: float
    examples_per_s: float
    auc: float
    rpcs_per_step: float | None
    """Calls from one task to another, each a request with its reply, and tensors sent unasked."""
    wire_mb_per_step: float | None
    """Between the tasks, both directions, by TCP or through memory."""
    ps: int | None = None
    workers: int | None = None
    batch_size: int | None = None
    """These three are None in records of the first days."""

    @property
    def metric(self) -> Metric:
        side = side_name(self.protocol, self.tensor_fuse)
        return Metric(f"Training, {self.model}", side, self.steps_per_s, "steps/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


# A report is due well within its timeout even where a step takes seconds.
_STEPS_A_REPORT = 20
_REPORTS_A_TURN = 8
_REPLY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class TrainPlan:
    """What to train on; ``steps`` counts the steps of all workers together, for each contender."""

    model: str = "flights"
    protocols: tuple[str, ...] = PROTOCOLS
    ps: int = 2
    workers: int = 2
    steps: int = 2000
    batch_size: int = 256
    rounds: int = 8
    setting: Setting = DEFAULT_SETTING

    def __post_init__(self) -> None:
        for name in ("ps", "workers", "batch_size", "rounds"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
        if self.steps < 2 * self.workers:
            raise UsageError(
                f"--steps must be at least {2 * self.workers}: "
                "a step of warm-up and a measured one for each worker"
            )

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return contenders(self.protocols, self.setting)

    def turns(self) -> list[int]:
        """Steps that each worker takes in each turn, the warm-up first."""
        per_worker = self.steps // self.workers
        rounds = min(self.rounds, per_worker - 1)
        turn = per_worker // (rounds + 1)
        return [per_worker - rounds * turn, *[turn] * rounds]


@dataclass(frozen=True)
class TrainProgress:
    """How far one contender's training is."""

    contender: str
    phase: str
    """"start", "warm-up", "train", "evaluate", or what the tasks say while they start."""
    step: int
    steps: int
    steps_per_s: float | None = None
    loss: float | None = None


def run(
    command: str,
    plan: TrainPlan,
    on_progress: Callable[[TrainProgress], None] = lambda progress: None,
    host_pool: HostPool = THIS_MACHINE,
) -> Record[TrainResult]:
    """Trains the model once per contender, in turns, as ``command``.

    Raises TensorwireError when TensorFlow or the data is missing or a task fails, and leaves no
    process behind, however it ends.
    """
    check_installed()
    noise = NoiseWatch()
    with contextlib.ExitStack() as stack:
        clusters = [
            stack.enter_context(host_pool.cluster({"ps": plan.ps, "worker": plan.workers}))
            for _ in plan.contenders
        ]
        # In a cluster's directory the data goes when the cluster goes, even if we are killed.
        data_directory = clusters[0].directory / "data"
        data_directory.mkdir()
        stack.callback(shutil.rmtree, data_directory, ignore_errors=True)
        files = examples.write(data_directory, plan.workers, *MODELS[plan.model].load())
        largest_batch = files.train_examples // plan.workers
        if plan.batch_size > largest_batch:
            raise UsageError(
                f"--batch-size {plan.batch_size} is more than a worker's share of the examples: "
                f"at most {largest_batch} with {plan.workers} worker(s)"
            )
        sides = [
            _Training(contender, plan, cluster, files, on_progress)
            for contender, cluster in zip(plan.contenders, clusters, strict=True)
        ]
        for side in sides:
            side.start()
        for side in sides:
            side.open()
        for number, steps in enumerate(plan.turns()):
            # A B, B A, A B, …: a machine that grows slower or faster favours nobody.
            for side in sides if number % 2 == 0 else reversed(sides):
                side.take_turn(steps, warm_up=number == 0)
        results = [side.finish() for side in sides]
    rounds = {side.contender.name: side.rounds for side in sides}
    return Record(
        command=command,
        tensorflow=sides[0].tensorflow,
        results=results,
        ratios=compare(rounds, PAIRS),
        noise=noise.seen(rounds),
        lab=host_pool.document,
    )


@dataclass(frozen=True)
class _Traffic:
    """What went between the tasks; None where nobody counts it."""

    wire_bytes: int | None
    calls: int | None

    def __add__(self, other: _Traffic) -> _Traffic:
        return _Traffic(
            _sum(self.wire_bytes, other.wire_bytes),
            _sum(self.calls, other.calls),
        )

    def __sub__(self, other: _Traffic) -> _Traffic:
        return self + _Traffic(_negative(other.wire_bytes), _negative(other.calls))


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _negative(a: int | None) -> int | None:
    return None if a is None else -a


class _Training:
    """One contender's cluster while it trains.

    ``rounds`` has, for each measured turn, the seconds of a step, workers together, as its one
    element.
    """

    def __init__(
        self,
        contender: Contender,
        plan: TrainPlan,
        cluster: LocalCluster,
        files: examples.ExampleFiles,
        on_progress: Callable[[TrainProgress], None],
    ) -> None:
        self.contender = contender
        self._plan = plan
        self._cluster = cluster
        self._files = files
        self._on_progress = on_progress
        self.tensorflow = ""
        self._ps: list[Task] = []
        self._workers: list[Task] = []
        self._steps_done = 0
        self.rounds: list[list[float]] = []
        self._measured_steps = 0
        self._traffic = _Traffic(0, 0)
        self._loss: float | None = None

    def start(self) -> None:
        """Starts the tasks' processes, and does not wait for them."""
        self._report("start")
        self._ps = [self._start("ps", i) for i in range(self._plan.ps)]
        self._workers = [self._start("worker", i) for i in range(self._plan.workers)]

    def _start(self, job: str, index: int) -> Task:
        # Files of this machine are of no use to a task of another.
        here = self._cluster.host(job, index).is_this_machine
        together = self._cluster.is_on_this_machine
        config = {
            "job": job,
            "index": index,
            "spec": self._cluster.spec,
            "protocol": self.contender.protocol,
            "tensor_fuse": self.contender.setting.tensor_fuse,
            "model": self._plan.model,
            "batch_size": self._plan.batch_size,
            "workers": self._plan.workers,
            "train_file": str(self._files.train[index]) if job == "worker" and here else "",
            "held_out_file": str(self._files.held_out),
            # Each ps writes its share where it is, and the chief has to find all of them.
            "checkpoint_directory": str(self._cluster.directory / "checkpoint") if together else "",
        }
        task = self._cluster.start(
            job,
            index,
            task_argv("bench.train_task"),
            env=self.contender.setting.task_environment(),
            channel=True,
        )
        self._send(task, config)
        return task

    def open(self) -> None:
        """Waits for the tasks and opens their sessions, the chief's first: it initialises."""
        for task in (*self._ps, *self._workers):
            self.tensorflow = wait_started(self._cluster, task, self)
        for task in self._workers:
            self._ask(task, "open")

    def activity(self, text: str) -> None:
        """For the Watcher that hears what the tasks do while they start."""
        self._report(text)

    def advance(self, count: int = 1) -> None:
        """For the Watcher: nothing is counted while tasks start."""

    def take_turn(self, steps: int, warm_up: bool) -> None:
        """Has every worker take ``steps`` steps."""
        report_every = max(1, min(_STEPS_A_REPORT, steps // _REPORTS_A_TURN))
        before = self._traffic_so_far()
        for task in self._workers:
            self._send(task, {"do": "run", "steps": steps, "report_every": report_every})
        last: dict[str, Message] = {}
        unfinished = list(self._workers)
        while unfinished:
            for task in tuple(unfinished):
                report = self._receive(task)
                last[task.name] = report
                if report["steps"] == steps:
                    unfinished.remove(task)
            self._loss = statistics.fmean(r["loss"] for r in last.values())
            self._report(
                "warm-up" if warm_up else "train",
                taken=sum(r["steps"] for r in last.values()),
                steps_per_s=_rate(last),
            )
        taken = steps * len(self._workers)
        self._steps_done += taken
        if warm_up:
            return
        self._measured_steps += taken
        self.rounds.append([1.0 / _rate(last)])
        self._traffic += self._traffic_so_far() - before
        if self._traffic.calls == 0:
            raise TensorwireError(
                f"no tensor went over {self.contender.protocol}: "
                "its figures would be those of another way"
            )

    def finish(self) -> TrainResult:
        """Scores the held-out examples, writes the last checkpoint and ends the tasks."""
        self._report("evaluate")
        chief = self._workers[0]
        calls = self._traffic.calls
        calls_per_step = (
            # The chief's step has a few calls more: its hooks fetch the global step.
            statistics.fmean(self._ask(task, "trace")["calls"] for task in self._workers)
            if calls is None
            else calls / self._measured_steps
        )
        wire_bytes = self._traffic.wire_bytes
        auc = self._ask(chief, "evaluate")["auc"]
        for task in self._workers:
            self._ask(task, "close")
        for task in (*self._workers, *self._ps):
            task.stop()
        steps_per_s = 1.0 / typical_s(self.rounds)
        return TrainResult(
            protocol=self.contender.protocol,
            tensor_fuse=self.contender.setting.tensor_fuse,
            model=self._plan.model,
            steps=self._steps_done,
            steps_per_s=steps_per_s,
            examples_per_s=steps_per_s * self._plan.batch_size,
            auc=auc,
            rpcs_per_step=float(calls_per_step),
            wire_mb_per_step=(
                None if wire_bytes is None else wire_bytes / self._measured_steps / 1e6
            ),
            ps=self._plan.ps,
            workers=self._plan.workers,
            batch_size=self._plan.batch_size,
        )

    def _traffic_so_far(self) -> _Traffic:
        """gRPC's bytes from the kernel, and grpc++'s bytes and calls from its own counters."""
        tasks = (*self._ps, *self._workers)
        stats = {task: self._ask(task, "stats") for task in tasks}
        # Tasks in one network see the same connections.
        grpc_bytes: int | None = 0
        for each in {each["network"]: each for each in stats.values()}.values():
            grpc_bytes = _sum(grpc_bytes, each["grpc_bytes"])
        if self.contender.protocol == "grpc":
            return _Traffic(grpc_bytes, None)
        of_tasks = stats.values()
        data_bytes = sum(int(each["rx_bytes"]) + int(each["read_bytes"]) for each in of_tasks)
        tensors = sum(int(s["served_tensors"]) + int(s["pushed_tensors"]) for s in of_tasks)
        # CleanupGraph follows each RunGraph and has no counter of its own.
        graph_calls = 2 * sum(int(s["run_graphs"]) for s in of_tasks)
        return _Traffic(data_bytes + (grpc_bytes or 0), tensors + graph_calls)

    def _report(self, phase: str, taken: int = 0, steps_per_s: float | None = None) -> None:
        plan = self._plan
        self._on_progress(
            TrainProgress(
                contender=self.contender.name,
                phase=phase,
                step=self._steps_done + taken,
                steps=sum(plan.turns()) * plan.workers,
                steps_per_s=steps_per_s,
                loss=self._loss,
            )
        )

    def _send(self, task: Task, message: Message) -> None:
        try:
            task.channel.send(message)
        except ChannelClosed:
            raise self._cluster.error_of(task) from None

    def _receive(self, task: Task) -> Message:
        """The task's next message. Other tasks are watched: without its ps a worker only waits."""
        deadline = time.monotonic() + _REPLY_TIMEOUT_S
        while not task.channel.wait(1.0):
            self._cluster.check()
            if time.monotonic() > deadline:
                raise self._cluster.error_of(task)
        return answer(self._cluster, task, 1.0)

    def _ask(self, task: Task, command: str) -> Message:
        self._send(task, {"do": command})
        return self._receive(task)


def _rate(last: dict[str, Message]) -> float:
    """Steps a second of all workers together."""
    return sum(float(report["steps"] / report["elapsed_s"]) for report in last.values())


def _section(record: Record[TrainResult]) -> Section:
    """The table, steps and messages, and what they mean."""
    results = record.results
    messages = [
        Bar(_name(result), result.rpcs_per_step, _name(result))
        for result in results
        if result.rpcs_per_step is not None
    ]
    return Section(
        f"Training on {MODELS[results[0].model].title}",
        " ".join(verdicts(results, record.ratios)),
        [
            steps_bars(results),
            *([Bars("Messages a step", "messages", messages)] if messages else []),
        ],
        [_table(results)],
    )


def steps_bars(results: Sequence[TrainResult]) -> Bars:
    """A bar a contender."""
    bars = [Bar(_name(result), result.steps_per_s, _name(result)) for result in results]
    return Bars("Training steps a second", "steps/s", bars)


def _table(results: Sequence[TrainResult]) -> Table:
    first = results[0]
    tasks = ""
    if first.ps is not None and first.workers is not None and first.batch_size is not None:
        tasks = f": {first.ps} ps, {first.workers} workers, batches of {first.batch_size}"
    return Table(
        f"Wide & Deep on {MODELS[first.model].title}{tasks}",
        ["protocol", "steps/s", "examples/s", "MB/step", "messages/step", "AUC"],
        [
            [
                [
                    _name(result),
                    number(result.steps_per_s),
                    f"{result.examples_per_s:.0f}",
                    _number_or_dash(result.wire_mb_per_step),
                    _number_or_dash(result.rpcs_per_step),
                    f"{result.auc:.4f}",
                ]
                for result in results
            ]
        ],
    )


def _number_or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)


def _name(result: TrainResult) -> str:
    return side_name(result.protocol, result.tensor_fuse)


def verdicts(results: Sequence[TrainResult], ratios: Mapping[str, Ratio]) -> list[str]:
    """A sentence for each comparison with stock grpc; none where it took no part."""
    of = {_name(result): result for result in results}
    return [
        _verdict(of[name.removesuffix("/grpc")], of["grpc"], ratio)
        for name, ratio in ratios.items()
        if name.endswith("/grpc")
    ]


def _verdict(first: TrainResult, grpc: TrainResult, ratio: Ratio) -> str:
    messages = ""
    if first.tensor_fuse and first.rpcs_per_step is not None and grpc.rpcs_per_step:
        fewer = 1.0 - first.rpcs_per_step / grpc.rpcs_per_step
        messages = f" with {fewer:.0%} fewer messages a step,"
    return (
        f"{_name(first)} trains {times(ratio)} as fast as grpc,{messages} "
        f"to an AUC of {first.auc:.4f} against {grpc.auc:.4f}."
    )
