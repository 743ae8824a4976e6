"""Training on several protocols: live progress, the table, and what it means in a sentence."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from tensorwire.bench.record import TrainResult
from tensorwire.bench.sides import side_name
from tensorwire.bench.stats import Ratio
from tensorwire.bench.train import TrainProgress
from tensorwire.report.page import Bar, Plot
from tensorwire.report.tables import number

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


def train_table(results: Sequence[TrainResult], title: str) -> Table:
    """A row a contender."""
    table = Table(title=title, title_justify="left")
    table.add_column("protocol", no_wrap=True)
    for heading in ("steps/s", "examples/s", "MB/step", "messages/step", "AUC"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            _name(result),
            number(result.steps_per_s),
            f"{result.examples_per_s:.0f}",
            "-" if result.wire_mb_per_step is None else number(result.wire_mb_per_step),
            "-" if result.rpcs_per_step is None else number(result.rpcs_per_step),
            f"{result.auc:.4f}",
        )
    return table


def train_plots(results: Sequence[TrainResult]) -> list[Plot]:
    """Steps a second, and messages a step where they were counted; a bar a contender."""
    rates = [Bar(_name(result), result.steps_per_s) for result in results]
    messages = [
        Bar(_name(result), result.rpcs_per_step)
        for result in results
        if result.rpcs_per_step is not None
    ]
    plots = [Plot("Steps a second", "steps/s", rates)]
    return [*plots, Plot("Messages a step", "messages", messages)] if messages else plots


def _name(result: TrainResult) -> str:
    return side_name(result.protocol, result.tensor_fuse)


def spread_notes(ratios: Mapping[str, Ratio]) -> list[str]:
    """A warning for each ratio about which the rounds disagree."""
    return [
        f"the machine is busy with something else: {name} varied from {ratio.low:.2f} to "
        f"{ratio.high:.2f} in the middle half of the rounds; more --steps give a firmer figure"
        for name, ratio in ratios.items()
        if ratio.is_wide
    ]


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
        f"{_name(first)} trains {ratio.value:.2f} times as fast as grpc "
        f"({ratio.low:.2f} to {ratio.high:.2f} in the middle half of the rounds),{messages} "
        f"to an AUC of {first.auc:.4f} against {grpc.auc:.4f}."
    )
