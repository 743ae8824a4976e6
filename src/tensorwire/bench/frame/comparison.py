"""Comparisons of sides: ratios with intervals, warnings about them, and their presentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tensorwire.bench.frame.contenders import PAIRS
from tensorwire.bench.frame.host_pool import lab_notes
from tensorwire.bench.frame.record import LatencyUs, Noise, Ratio, Record, Result, StepMs
from tensorwire.machine import Machine
from tensorwire.report.section import Bar, Bars, Report, Section, Table
from tensorwire.units import number

if TYPE_CHECKING:
    from tensorwire.bench.frame.statistics import Rounds

_FAR = 1.0 / 3.0
"""A wider interval, relative to its ratio, causes a warning."""
_BUSY_LOAD = 0.5
_MUCH_STEAL = 0.02


def times(ratio: Ratio) -> str:
    """ "3.26 times (3.10 to 3.41)"."""
    return f"{ratio.value:.2f} times{in_brackets(ratio)}"


def ratio_table(ratios: Mapping[str, Ratio]) -> list[Table]:
    """A table with one row per comparison; empty without comparisons."""
    if not ratios:
        return []
    rows = [[name, f"{ratio.value:.2f}", interval(ratio)] for name, ratio in ratios.items()]
    columns = ["above 1: the first is faster", "ratio of medians", "95 % interval"]
    return [Table("How many times as fast", columns, [rows])]


def interval(ratio: Ratio) -> str:
    """ "3.10 to 3.41", or "-" if there was only one round."""
    if ratio.interval is None:
        return "-"
    low, high = ratio.interval
    return f"{low:.2f} to {high:.2f}"


def doubts(ratios: Mapping[str, Ratio], more: str = "--rounds and --iters") -> list[str]:
    """A warning for each uncertain ratio; `more` names the options that would help."""
    found = [
        f"{name}: {reason}; more {more} give a more certain figure"
        for name, ratio in ratios.items()
        if (reason := doubt(ratio))
    ]
    if unknown := [name for name, ratio in ratios.items() if ratio.interval is None]:
        found.append(
            f"no confidence interval for {', '.join(unknown)}: this requires several rounds"
        )
    return found


def doubt(ratio: Ratio) -> str:
    """Why a ratio is uncertain; empty if it is not, or if there is no interval."""
    if ratio.interval is None:
        return ""
    low, high = ratio.interval
    if low < 1.0 < high:
        return f"the rounds do not show which is faster: the ratio may be from {interval(ratio)}"
    if max(ratio.value - low, high - ratio.value) > _FAR * ratio.value:
        return f"the rounds disagree: the ratio may be from {interval(ratio)}"
    return ""


_ALL = 0.99
"""This share of the bytes counts as all, because greetings and small tensors always use TCP."""


def transport_used(socket_bytes: float, memory_bytes: float) -> str:
    """The transport of a side's tensors, from the bytes that its tasks sent."""
    share = memory_bytes / (socket_bytes + memory_bytes) if memory_bytes else 0.0
    if share < 1.0 - _ALL:
        return "TCP"
    if share > _ALL:
        return "shared memory"
    return f"shared memory ({100 * share:.0f} % of the bytes) and TCP"


def transport_of(tasks: Iterable[Mapping[str, Any]]) -> str:
    """The transport of a side's tensors, from the plug-in's counters of its tasks."""
    counters = list(tasks)
    return transport_used(
        sum(each.get("tx_bytes", 0) for each in counters),
        sum(each.get("lent_bytes", 0) for each in counters),
    )


def transport_notes(transports: Mapping[str, str]) -> list[str]:
    """A line such as "transport: grpc TCP; grpc++ shared memory"."""
    if not transports:
        return []
    return ["transport: " + "; ".join(f"{name} {used}" for name, used in transports.items())]


def noise_notes(noise: Noise | None) -> list[str]:
    """The machine's noise, as one line."""
    if noise is None:
        return []
    scattered = ", ".join(f"{name} {share:.0%}" for name, share in noise.scatter.items())
    return [
        f"load average {noise.load_start:.1f} before, {noise.load_end:.1f} after; "
        f"{noise.steal:.1%} of the CPU time stolen by the hypervisor"
        + (f"; rounds scatter by {scattered}" if scattered else "")
    ]


def noise_warnings(noise: Noise | None, host: Machine) -> list[str]:
    """Reasons why this machine was not suitable for measuring."""
    warnings = []
    if noise is not None and noise.load_start > _BUSY_LOAD * host.cores:
        warnings.append(
            f"the machine was busy before: load average {noise.load_start:.1f} on "
            f"{host.cores} cores"
        )
    if noise is not None and noise.steal > _MUCH_STEAL:
        warnings.append(f"the hypervisor gave {noise.steal:.0%} of the CPU time to other machines")
    return warnings


def in_brackets(ratio: Ratio) -> str:
    """ " (3.10 to 3.41)", or "" if there was only one round."""
    return "" if ratio.interval is None else f" ({interval(ratio)})"


def compare(rounds: Mapping[str, Rounds], pairs: Sequence[tuple[str, str]]) -> dict[str, Ratio]:
    """The ratio "a/b" of each pair of `pairs` that was measured."""
    from tensorwire.bench.frame.statistics import speedup  # late, because it imports numpy

    return {
        f"{first}/{second}": speedup(rounds[first], rounds[second])
        for first, second in pairs
        if first in rounds and second in rounds
    }


def by_side_and_case(
    rounds: Mapping[str, Mapping[str, Rounds]],
) -> dict[str, Rounds]:
    """The rounds by name: "grpc", or "grpc tiny" if there are several cases."""
    return {
        name + _case_suffix(case, rounds): of_side
        for case, of_sides in rounds.items()
        for name, of_side in of_sides.items()
    }


def compare_cases(
    rounds: Mapping[str, Mapping[str, Rounds]],
    pairs: Sequence[tuple[str, str]] = PAIRS,
) -> dict[str, Ratio]:
    """Compares `pairs` in each case of `rounds`; names contain the case if there are several."""
    ratios = {}
    for case, of_sides in rounds.items():
        for name, ratio in compare(of_sides, pairs).items():
            ratios[name + _case_suffix(case, rounds)] = ratio
    return ratios


def _case_suffix(case: str, rounds: Mapping[str, object]) -> str:
    return f" {case}" if len(rounds) > 1 else ""


_Row = TypeVar("_Row")


def latency_bars(title: str, latencies: Iterable[tuple[str, LatencyUs]]) -> Bars:
    """Medians, each with a line to its 99th percentile."""
    return Bars(
        title,
        "us",
        [
            Bar(name, each.p50, name, each.p50, each.p99, f", p99 {number(each.p99)}")
            for name, each in latencies
        ],
        "Median, and a line to the 99th percentile; microseconds, shorter is better.",
    )


def step_cells(step: StepMs) -> list[str]:
    return [number(step.p50), number(step.p90), number(step.min)]


def step_bars(title: str, steps: Iterable[tuple[str, StepMs]]) -> Bars:
    return Bars(
        title,
        "ms",
        [Bar(name, step.p50, name, low=step.min, high=step.p90) for name, step in steps],
        "Median, and a line from the fastest to the 90th percentile; shorter is better.",
    )


def by_case(results: Sequence[_Row]) -> list[tuple[str, list[_Row]]]:
    """The results grouped by case, in the order of each case's first result."""
    cases: dict[str, list[_Row]] = {}
    for result in results:
        cases.setdefault(result.case, []).append(result)  # type: ignore[attr-defined]
    return list(cases.items())


def compared(ratios: Mapping[str, Ratio], does: str) -> str:
    """ "grpc++ takes small steps 2.80 (tiny) and 5.24 (many) times as fast as grpc."."""
    of_side: dict[str, list[str]] = {}
    for name, ratio in ratios.items():
        first, _, second = name.partition("/")
        against, _, case = second.partition(" ")
        if against == "grpc" and not case.startswith("fused"):
            text = f"{ratio.value:.2f}" + (f" ({case})" if case else "")
            of_side.setdefault(first, []).append(text)
    clauses = [f"{first} {' and '.join(texts)} times" for first, texts in of_side.items()]
    if not clauses:
        return ""
    first = next(iter(of_side))
    clauses[0] = clauses[0].replace(first, f"{first} {does}", 1) + " as fast as grpc"
    return ", ".join(clauses) + "."


def section(record: Record[Result], *, follows_others: bool = False) -> Section:
    """The record as a section of a report.

    Args:
        record: the record of any experiment.
        follows_others: True if the load before the measurement came from our own experiments.

    Raises:
        ValueError: nothing was measured.
    """
    if not record.results:
        raise ValueError("a record without a result")
    kind = type(record.results[0])
    shown = kind.section(record)
    return dataclasses.replace(
        shown,
        tables=[*shown.tables, *ratio_table(record.ratios)],
        notes=[
            *shown.notes,
            *transport_notes(record.transports),
            *lab_notes(record.lab),
            *noise_notes(record.noise),
        ],
        warnings=[
            *([] if follows_others else noise_warnings(record.noise, record.host)),
            *doubts(record.ratios, kind.more_rounds_by),
        ],
    )


def report(record: Record[Result]) -> Report:
    """The page of one experiment."""
    shown = section(record)
    return Report(
        title=f"tensorwire {record.command}",
        facts=facts(record),
        sections=[shown, *type(record.results[0]).details(record)],
        headlines=[shown.headline] if shown.headline else [],
    )


def facts(record: Record[Result]) -> list[str]:
    """The versions, the machine and the time of the measurement."""
    host = record.host
    return [
        f"tensorwire {record.version}",
        *([f"TensorFlow {record.tensorflow}"] if record.tensorflow else []),
        f"{host.cpu}, {host.cores} cores",
        f"Linux {host.kernel}",
        *lab_notes(record.lab),
        *([record.time.replace("T", " ").replace("Z", " UTC")] if record.time else []),
    ]
