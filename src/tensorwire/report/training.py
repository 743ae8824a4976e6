"""Training on several protocols: live progress, the table, and what it means in a sentence."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from tensorwire.bench.models import MODELS
from tensorwire.bench.record import Ratio, Record, TrainResult
from tensorwire.bench.sides import side_name
from tensorwire.bench.train import TrainProgress
from tensorwire.report.blocks import Bar, Bars, Section, Table
from tensorwire.report.comparison import times
from tensorwire.units import number

_LINE_EVERY_S = 5.0
_WAITING_LINE_EVERY_S = 30.0


class TrainingDisplay:
    """Progress on standard error: a bar a contender for a person, a line now and then for a log.

    A context manager; call it with each TrainProgress.
    """

    def __init__(self, contenders: Sequence[str]) -> None:
        self._last_line = 0.0
        self._last_phase: tuple[str, str] | None = None
        self._bars: Progress | None = None
        self._bar_of: dict[str, TaskID] = {}
        console = Console(stderr=True)
        if console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description:12}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]:>16}"),
                TextColumn("{task.fields[loss]:>11}"),
                TextColumn("{task.fields[phase]}"),
                console=console,
            )
            for name in contenders:
                self._bar_of[name] = self._bars.add_task(
                    name, total=None, rate="", loss="", phase="waits"
                )

    def __enter__(self) -> TrainingDisplay:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def activity(self, text: str) -> None:
        """What happens before the first contender starts."""
        if self._bars is None:
            print(text, file=sys.stderr, flush=True)
        else:
            for bar in self._bar_of.values():
                self._bars.update(bar, phase=text)

    def advance(self, count: int = 1) -> None:
        """For the Watcher: nothing is counted before that."""

    def __call__(self, progress: TrainProgress) -> None:
        rate = "" if progress.steps_per_s is None else f"{number(progress.steps_per_s)} steps/s"
        loss = "" if progress.loss is None else f"loss {progress.loss:.4f}"
        if self._bars is None:
            self._line(progress, rate, loss)
            return
        bar = self._bar_of[progress.contender]
        self._bars.update(
            bar, total=progress.steps, completed=progress.step, loss=loss, phase=progress.phase
        )
        if rate:
            self._bars.update(bar, rate=rate)

    def _line(self, progress: TrainProgress, rate: str, loss: str) -> None:
        phase = (progress.contender, progress.phase)
        now = time.monotonic()
        quiet_s = _LINE_EVERY_S if rate else _WAITING_LINE_EVERY_S
        if phase == self._last_phase and now - self._last_line < quiet_s:
            return
        self._last_phase = phase
        self._last_line = now
        words = [f"step {progress.step} of {progress.steps}" if rate else "", rate, loss]
        text = ", ".join([f"{progress.contender}: {progress.phase}", *filter(None, words)])
        print(text, file=sys.stderr, flush=True)


def section(record: Record[TrainResult]) -> Section:
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
