"""Steps and examples per second of a model, trained by ps and workers.

Each contender has its own cluster. All clusters run at the same time, but only one trains at a
time, in turns of a few seconds. So other load on the machine affects all of them equally, and
ratios are valid even on a noisy machine. The first turn of each is a warm-up and is not counted.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics as stdlib_statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire.bench.experiments.train_task import TrainTask, TrainWorker
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.comparison import times, transport_of
from tensorwire.bench.frame.contenders import (
    DEFAULT_SETTING,
    PROTOCOLS,
    TENSOR_FUSE,
    Contender,
    Setting,
    contenders,
    rewritten_name,
)
from tensorwire.bench.frame.experiment import Case, Side, measure
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.record import Metric, Ratio, Record, Result
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import (
    TaskProcesses,
    Unwatched,
    Watcher,
    answer,
    send,
    start_task,
    wait_started,
)
from tensorwire.bench.lab import TaskProcess as Process
from tensorwire.bench.lab.channel import Message
from tensorwire.bench.models import MODELS, examples
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.plugin.tensorflow_install import check_installed
from tensorwire.report.section import Bar, Bars, Section, Table
from tensorwire.units import number

# A worker reports well within the timeout, even if a step takes seconds.
_STEPS_A_REPORT = 20
_REPORTS_A_TURN = 8
_REPLY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class TrainResult(Result):
    """`bench train` and `demo`: one protocol that trains one model."""

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
    """Calls between tasks (a request with its reply counts once), and pushed tensors."""
    wire_mb_per_step: float | None
    """MB (10^6 bytes) between the tasks, both directions, over TCP or shared memory."""
    ps: int | None = None
    workers: int | None = None
    batch_size: int | None = None
    """`ps`, `workers` and `batch_size` are None in very old records."""
    rewrites: tuple[str, ...] = ()
    """Names of measure.contenders; older records have only `tensor_fuse`."""
    ps_operations_per_step: float | None = None
    """Operations that the busiest ps executes in a step of one worker."""

    @property
    def name(self) -> str:
        """The contender's name."""
        return rewritten_name(
            self.protocol, self.rewrites or ((TENSOR_FUSE,) if self.tensor_fuse else ())
        )

    @property
    def metric(self) -> Metric:
        return Metric(f"Training, {self.model}", self.name, self.steps_per_s, "steps/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return _section(record)


@dataclass(frozen=True)
class TrainPlan:
    """The training run; ``steps`` is the sum over all workers, for each contender."""

    model: str = option(
        "flights",
        "flights: the demo's model; ctr: 26 categorical and 200 further small columns, synthetic.",
        choices=tuple(MODELS),
    )
    steps: int = option(2000, "Training steps of all workers together, for each protocol.", least=1)
    ps: int = option(2, least=1, most=16)
    workers: int = option(2, least=1, most=16)
    batch_size: int = option(256, "Examples of a step of one worker.", least=1, most=65536)
    seed: int = option(
        2013, "Random seed of the variables' first values and of the batches.", least=0
    )
    rounds: int = 8
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = DEFAULT_SETTING

    def __post_init__(self) -> None:
        for name in ("ps", "workers", "batch_size", "rounds"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
        if self.steps < 2 * self.workers:
            raise UsageError(
                f"--steps must be at least {2 * self.workers}: "
                "one warm-up step and one measured step for each worker"
            )

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return contenders(self.protocols, self.setting)

    def turns(self) -> list[int]:
        """Steps of each worker in each turn; the first turn is the warm-up."""
        per_worker = self.steps // self.workers
        rounds = min(self.rounds, per_worker - 1)
        turn = per_worker // (rounds + 1)
        return [per_worker - rounds * turn, *[turn] * rounds]


@dataclass(frozen=True)
class TrainProgress:
    """The progress of one contender's training."""

    contender: str
    phase: str
    """"start", "warm-up", "train", "evaluate", or an activity of the tasks while they start."""
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

    Raises TensorwireError if TensorFlow or the data is missing, or a task fails. All processes are
    ended in every case.
    """
    check_installed()
    data = _SharedExamples(plan)
    sides = [TrainSide(each, plan, host_pool, data, on_progress) for each in plan.contenders]
    return measure(
        command,
        sides,
        [Case(plan.model, None, plan.turns()[1:])],
        Unwatched(),
        lab=host_pool.document,
        back_and_forth=True,  # a drift of the machine's speed then favours no side
    )


class _SharedExamples:
    """The examples for all contenders, in the folder of the first contender's cluster.

    They are removed with that cluster, even if this process is killed.
    """

    def __init__(self, plan: TrainPlan) -> None:
        self._plan = plan
        self._files: examples.ExampleFiles | None = None

    def files(self, held: contextlib.ExitStack, cluster_directory: Path) -> examples.ExampleFiles:
        """The files; the first call writes them, and `held` removes them.

        Raises:
            UsageError: a batch is larger than a worker's share.
        """
        if self._files is not None:
            return self._files
        plan = self._plan
        directory = cluster_directory / "data"
        directory.mkdir()
        held.callback(shutil.rmtree, directory, ignore_errors=True)
        files = examples.write(directory, plan.workers, *MODELS[plan.model].load())
        largest_batch = files.train_examples // plan.workers
        if plan.batch_size > largest_batch:
            raise UsageError(
                f"--batch-size {plan.batch_size} is more than a worker's share of the examples: "
                f"at most {largest_batch} with {plan.workers} worker(s)"
            )
        self._files = files
        return files


@dataclass(frozen=True)
class _Traffic:
    """The traffic between the tasks. A field is None if it was not counted."""

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


class TrainSide(TaskProcesses, Side[None, TrainResult]):
    """One contender's cluster while it trains."""

    def __init__(
        self,
        contender: Contender,
        plan: TrainPlan,
        host_pool: HostPool,
        data: _SharedExamples,
        on_progress: Callable[[TrainProgress], None],
    ) -> None:
        super().__init__(host_pool.cluster({"ps": plan.ps, "worker": plan.workers}))
        self.name = contender.name
        self._contender = contender
        self._plan = plan
        self._data = data
        self._on_progress = on_progress
        self._ps: list[Process] = []
        self._workers: list[Process] = []
        self._steps_done = 0
        self._measured_steps = 0
        self._traffic = _Traffic(0, 0)
        self._loss: float | None = None

    def _open(self, held: contextlib.ExitStack) -> None:
        held.enter_context(self._cluster)
        files = self._data.files(held, self._cluster.directory)
        self._report("start")
        self._ps = [self._start_ps(index) for index in range(self._plan.ps)]
        self._workers = [self._start_worker(i, files) for i in range(self._plan.workers)]

    def _common_setup(self, job: str, index: int) -> Message:
        return {
            "spec": self._cluster.spec,
            "job": job,
            "index": index,
            "protocol": self._contender.protocol,
            "rewrites": self._contender.setting.rewrites,
        }

    def _start_ps(self, index: int) -> Process:
        setup = self._common_setup("ps", index)
        env = self._contender.setting.task_environment()
        return start_task(self._cluster, "ps", index, TrainTask, setup, env)

    def _start_worker(self, index: int, files: examples.ExampleFiles) -> Process:
        # A task on another machine cannot read files of this machine.
        here = self._cluster.host("worker", index).is_this_machine
        together = self._cluster.is_on_this_machine
        setup = {
            **self._common_setup("worker", index),
            "model": self._plan.model,
            "batch_size": self._plan.batch_size,
            "seed": self._plan.seed,
            "train_file": str(files.train[index]) if here else "",
            "held_out_file": str(files.held_out),
            # Each ps writes its part of a checkpoint on its own machine, and the chief must find
            # all parts.
            "checkpoint_directory": str(self._cluster.directory / "checkpoint") if together else "",
        }
        env = self._contender.setting.task_environment()
        return start_task(self._cluster, "worker", index, TrainWorker, setup, env)

    def wait_started(self, watcher: Watcher) -> None:
        """Waits for the tasks and opens their sessions, the chief's first, which initializes."""
        for process in (*self._ps, *self._workers):
            self.tensorflow = wait_started(self._cluster, process, self)
        for process in self._workers:
            self._request(process, "open")

    def activity(self, text: str) -> None:
        """Watcher interface: the tasks report their activity while they start."""
        self._report(text)

    def advance(self, count: int = 1) -> None:
        """Watcher interface: does nothing, because no step is counted while tasks start."""

    def warm_up(self, what: None) -> None:
        self._train(self._plan.turns()[0], "warm-up")

    def block(self, what: None, steps: int | None) -> list[float]:
        """Runs a turn; returns one mean: seconds per step, over all workers together."""
        before = self._traffic_so_far()
        steps_per_s = self._train(steps or 1, "train")
        self._measured_steps += (steps or 1) * len(self._workers)
        self._traffic += self._traffic_so_far() - before
        if self._traffic.calls == 0:
            raise TensorwireError(
                f"no tensor was sent over {self._contender.protocol}: its results are invalid"
            )
        return [1.0 / steps_per_s]

    def _train(self, steps: int, phase: str) -> float:
        """Runs `steps` steps on every worker; returns steps per second of all together."""
        report_every = max(1, min(_STEPS_A_REPORT, steps // _REPORTS_A_TURN))
        for process in self._workers:
            message = {"do": "run", "steps": steps, "report_every": report_every}
            send(self._cluster, process, message)
        last: dict[str, Message] = {}
        unfinished = list(self._workers)
        while unfinished:
            for process in tuple(unfinished):
                report = self._receive(process)
                last[process.name] = report
                if report["steps"] == steps:
                    unfinished.remove(process)
            self._loss = stdlib_statistics.fmean(r["loss"] for r in last.values())
            self._report(phase, sum(r["steps"] for r in last.values()), _rate(last))
        self._steps_done += steps * len(self._workers)
        return _rate(last)

    def transport(self) -> str:
        return transport_of(self._request(each, "stats") for each in (*self._ps, *self._workers))

    def result(self, case: Case[None], rounds: Rounds) -> TrainResult:
        """Scores the held-out examples, writes the last checkpoint and ends the tasks."""
        self._report("evaluate")
        calls = self._traffic.calls
        # The chief's step has a few more calls, because its hooks fetch the global step.
        traces = [self._request(each, "trace") for each in self._workers]
        calls_per_step = (
            stdlib_statistics.fmean(each["calls"] for each in traces)
            if calls is None
            else calls / self._measured_steps
        )
        wire_bytes = self._traffic.wire_bytes
        auc = self._request(self._workers[0], "evaluate")["auc"]
        for process in self._workers:
            self._request(process, "close")
        for process in (*self._workers, *self._ps):
            process.stop()
        steps_per_s = 1.0 / statistics.typical_s(rounds)
        return TrainResult(
            protocol=self._contender.protocol,
            tensor_fuse=self._contender.setting.tensor_fuse,
            rewrites=self._contender.setting.rewrites,
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
            ps_operations_per_step=float(max(each["ps_operations"] for each in traces)),
        )

    def _traffic_so_far(self) -> _Traffic:
        """gRPC's bytes from the kernel, and grpc++'s bytes and calls from its own counters."""
        tasks = (*self._ps, *self._workers)
        counts = {task: self._request(task, "stats") for task in tasks}
        # Tasks in one network see the same connections.
        grpc_bytes: int | None = 0
        for each in {each["network"]: each for each in counts.values()}.values():
            grpc_bytes = _sum(grpc_bytes, each["grpc_bytes"])
        if self._contender.protocol == "grpc":
            return _Traffic(grpc_bytes, None)
        of_tasks = counts.values()
        data_bytes = sum(int(each["rx_bytes"]) + int(each["read_bytes"]) for each in of_tasks)
        tensors = sum(int(s["served_tensors"]) + int(s["pushed_tensors"]) for s in of_tasks)
        # CleanupGraph follows each RunGraph and has no counter of its own.
        graph_calls = 2 * sum(int(s["run_graphs"]) for s in of_tasks)
        return _Traffic(data_bytes + (grpc_bytes or 0), tensors + graph_calls)

    def _report(self, phase: str, taken: int = 0, steps_per_s: float | None = None) -> None:
        plan = self._plan
        self._on_progress(
            TrainProgress(
                contender=self.name,
                phase=phase,
                step=self._steps_done + taken,
                steps=sum(plan.turns()) * plan.workers,
                steps_per_s=steps_per_s,
                loss=self._loss,
            )
        )

    def _receive(self, process: Process) -> Message:
        """The task's next message. Watches all tasks, because a worker waits for a lost ps."""
        deadline = time.monotonic() + _REPLY_TIMEOUT_S
        while not process.channel.wait(1.0):
            self._cluster.check()
            if time.monotonic() > deadline:
                raise self._cluster.error_of(process)
        return answer(self._cluster, process, 1.0)

    def _request(self, process: Process, name: str) -> Message:
        send(self._cluster, process, {"do": name})
        return self._receive(process)


def _rate(last: dict[str, Message]) -> float:
    """Steps per second of all workers together."""
    return sum(float(report["steps"] / report["elapsed_s"]) for report in last.values())


def _section(record: Record[TrainResult]) -> Section:
    """The table, the charts of steps and messages, and the verdicts."""
    results = record.results
    messages = [
        Bar(result.name, result.rpcs_per_step, result.name)
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
    """One bar per contender."""
    bars = [Bar(result.name, result.steps_per_s, result.name) for result in results]
    return Bars("Training steps a second", "steps/s", bars)


def _table(results: Sequence[TrainResult]) -> Table:
    first = results[0]
    tasks = ""
    if first.ps is not None and first.workers is not None and first.batch_size is not None:
        tasks = f": {first.ps} ps, {first.workers} workers, batches of {first.batch_size}"
    return Table(
        f"Wide & Deep on {MODELS[first.model].title}{tasks}",
        ["protocol", "steps/s", "examples/s", "MB/step", "messages/step", "ps ops/step", "AUC"],
        [
            [
                [
                    result.name,
                    number(result.steps_per_s),
                    f"{result.examples_per_s:.0f}",
                    _number_or_dash(result.wire_mb_per_step),
                    _number_or_dash(result.rpcs_per_step),
                    _number_or_dash(result.ps_operations_per_step),
                    f"{result.auc:.4f}",
                ]
                for result in results
            ]
        ],
    )


def _number_or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)


def verdicts(results: Sequence[TrainResult], ratios: Mapping[str, Ratio]) -> list[str]:
    """A sentence for each comparison with stock grpc; empty if grpc was not measured."""
    of = {result.name: result for result in results}
    return [
        _verdict(of[name.removesuffix("/grpc")], of["grpc"], ratio)
        for name, ratio in ratios.items()
        if name.endswith("/grpc")
    ]


def _verdict(first: TrainResult, grpc: TrainResult, ratio: Ratio) -> str:
    messages = ""
    if (
        (first.tensor_fuse or first.rewrites)
        and first.rpcs_per_step is not None
        and grpc.rpcs_per_step
    ):
        fewer = 1.0 - first.rpcs_per_step / grpc.rpcs_per_step
        messages = f" with {fewer:.0%} fewer messages a step," if fewer > 0 else ""
    return (
        f"{first.name} trains {times(ratio)} as fast as grpc,{messages} "
        f"to an AUC of {first.auc:.4f} against {grpc.auc:.4f}."
    )
