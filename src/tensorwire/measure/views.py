"""Pieces that the sections of several experiments have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tensorwire.measure.record import LatencyUs, Ratio, StepMs
from tensorwire.measure.section import Bar, Bars
from tensorwire.units import number

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
    """The results of each case, in the order in which the cases first come."""
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
