"""Tables for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensorwire.bench.record import (
    MemoryResult,
    ServeResult,
    StepMs,
    StepsResult,
    StrategyResult,
    TransferResult,
)
from tensorwire.bench.sides import side_name
from tensorwire.bench.stats import Ratio


def show(*tables: Table, notes: Sequence[str] = ()) -> None:
    """Prints tables, then notes, to standard output; readable in a file and a pipe too."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=max(console.width, 100))
    for table in tables:
        console.print(table)
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def number(value: float) -> str:
    """Three significant digits without an exponent: 1230, 12.3, 0.0123."""
    if value == 0:
        return "0"
    digits = f"{value:.3g}"
    return f"{float(digits):.0f}" if "e" in digits else digits


def _steps(step: StepMs) -> list[str]:
    return [number(step.p50), number(step.p90), number(step.min)]


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def transfer_table(results: Sequence[TransferResult], ceilings: Mapping[str, float]) -> Table:
    """A row a protocol, then a row for each of what the machine does without TensorFlow.

    Args:
        results: of one call, so of one size.
        ceilings: MB/s of "tcp" and "memcpy".
    """
    size = number(results[0].data_mb) if results else "?"
    table = _table(
        f"Tensor transfer, {size} MB, worker to ps (MB = 10^6 bytes)",
        ["protocol", "MB/s", "step ms p50", "p90", "min", "CPU s/GB"],
    )
    for result in results:
        cpu = "-" if result.cpu_s_per_gb is None else number(result.cpu_s_per_gb)
        name = side_name(result.protocol, result.tensor_fuse)
        table.add_row(name, number(result.mb_per_s), *_steps(result.step_ms), cpu)
    if ceilings:
        table.add_section()
    for name, mb_per_s in ceilings.items():
        table.add_row(f"{name} (raw)", number(mb_per_s), "", "", "", "")
    return table


def steps_table(results: Sequence[StepsResult]) -> Table:
    """A row for each case and protocol."""
    table = _table(
        "Time of a step that assigns small tensors, worker to ps",
        ["case", "protocol", "tensors", "step ms p50", "p90", "min"],
    )
    previous = ""
    for result in results:
        if previous and result.case != previous:
            table.add_section()
        previous = result.case
        name = side_name(result.protocol, result.tensor_fuse)
        table.add_row(result.case, name, str(result.tensors), *_steps(result.step_ms))
    return table


def strategy_table(results: Sequence[StrategyResult]) -> Table:
    """A row for each case and protocol."""
    table = _table(
        "Functions that a ParameterServerStrategy schedules on one worker (MB = 10^6 bytes)",
        ["case", "protocol", "MB read", "functions/s", "ms p50", "p90", "min"],
    )
    previous = ""
    for result in results:
        if previous and result.case != previous:
            table.add_section()
        previous = result.case
        table.add_row(
            result.case,
            result.protocol,
            number(result.data_mb),
            number(result.functions_per_s),
            *_steps(result.step_ms),
        )
    return table


def serve_table(results: Sequence[ServeResult]) -> Table:
    """A row a protocol, of one call."""
    first = results[0]
    in_flight = f", {first.in_flight} requests each" if first.in_flight > 1 else ""
    table = _table(
        f"One ps, {first.clients} clients{in_flight}, {first.payload} payload of "
        f"{first.message_size} bytes",
        ["protocol", "requests/s", "MB/s", "latency us p50", "p99", "ps CPU us/request", "threads"],
    )
    for result in results:
        table.add_row(
            result.protocol,
            number(result.requests_per_s),
            number(result.mb_per_s),
            number(result.latency_us.p50),
            number(result.latency_us.p99),
            number(result.ps_cpu_us_per_request),
            str(result.ps_threads),
        )
    return table


def memory_table(results: Sequence[MemoryResult]) -> Table:
    """A row a task."""
    steps = results[0].iters if results else 0
    table = _table(
        f"Resident memory over {steps} steps, MB (of 10^6 bytes)",
        ["task", "protocol", "tensor", "after 100 steps", "highest", "at the end", "pool's cap"],
    )
    for each in results:
        figures = (each.data_mb, each.early_mb, each.highest_mb, each.final_mb, each.pool_cap_mb)
        table.add_row(each.task, each.protocol, *(f"{figure:.0f}" for figure in figures))
    return table


def ratio_tables(ratios: Mapping[str, Ratio]) -> list[Table]:
    """A row a comparison, with the middle half of the rounds; no table without a comparison."""
    if not ratios:
        return []
    table = _table(
        "How many times as fast",
        ["above 1: the first is faster", "median", "middle half of the rounds"],
    )
    for name, ratio in ratios.items():
        table.add_row(name, f"{ratio.value:.2f}", f"{ratio.low:.2f} - {ratio.high:.2f}")
    return [table]


def spread_notes(ratios: Mapping[str, Ratio]) -> list[str]:
    """A warning for each ratio about which the rounds disagree."""
    return [
        f"{name} varied from {ratio.low:.2f} to {ratio.high:.2f} in the middle half of the rounds: "
        "the machine is busy with something else; more --rounds and --iters give a firmer figure"
        for name, ratio in ratios.items()
        if ratio.is_wide
    ]
