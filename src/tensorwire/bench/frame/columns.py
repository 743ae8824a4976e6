"""Results that declare how they are shown: one function makes a table, another the charts.

A field annotated with a `Column` is one of the table, and a chart if it has a title for one.
Results of one case are a group of rows; with several sizes of a message the chart is a curve over
the size.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tensorwire.report.section import Bar, Bars, Chart, Line, Lines, Table
from tensorwire.units import number

PERCENTILES = {"min": 0.0, "p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "max": 100.0}
"""The percentile of a field of `Percentiles`, by its name."""


class Percentiles:
    """Base of dataclasses with percentiles of one quantity, which are columns side by side."""

    unit: ClassVar[str]
    bar: ClassVar[tuple[str, str, str]]
    """The fields that are the lower end of the line, the bar, and the upper end of the line."""
    caption: ClassVar[str]


@dataclass(frozen=True)
class StepMs(Percentiles):
    """Percentiles of the step time, in milliseconds, over every measured step."""

    unit = "ms"
    bar = ("min", "p50", "p90")
    caption = "Median, and a line from the fastest to the 90th percentile; shorter is better."

    p50: float
    p90: float
    min: float


@dataclass(frozen=True)
class LatencyUs(Percentiles):
    """Percentiles of the request time, in microseconds, over every measured request."""

    unit = "us"
    bar = ("p50", "p50", "p99")
    caption = "Median, and a line to the 99th percentile; microseconds, shorter is better."

    p50: float
    p99: float


@dataclass(frozen=True)
class Column:
    """How a field is shown: `mb_per_s: Annotated[float, Column("MB/s", "MB/s")]`."""

    header: str
    unit: str = ""
    chart: str = ""
    """The title of a chart of this field; empty: there is none."""
    show: str = ""
    """A format of the cell, such as ".0f"; empty: three digits."""
    divisor: float = 1.0
    aside: bool = False
    """True if the field is in a second table."""
    field: str = ""
    percentiles: type[Percentiles] | None = None
    """These two are known from the field."""
    is_text: bool = False

    @property
    def headers(self) -> list[str]:
        if self.percentiles is None:
            return [self.header]
        first, *others = (each.name for each in dataclasses.fields(self.percentiles))  # type: ignore[arg-type]
        return [f"{self.header} {first}", *(_SHOWN_AS.get(each, each) for each in others)]

    def cells(self, result: Any) -> list[str]:
        """The texts of a result's cells; "-" where it has no value."""
        value = getattr(result, self.field)
        if value is None:
            return ["-"] * len(self.headers)
        if self.percentiles is not None:
            return [number(each) for each in dataclasses.astuple(value)]
        if isinstance(value, float):
            value /= self.divisor
            return [format(value, self.show) if self.show else number(value)]
        return [str(value)]


_SHOWN_AS = {"p999": "p99.9"}


def columns(kind: type) -> Iterator[Column]:
    """The columns that a result's class declares."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        for column in getattr(hint, "__metadata__", ()):
            kinds = [hint.__origin__, *typing.get_args(hint.__origin__)]
            found = [k for k in kinds if isinstance(k, type) and issubclass(k, Percentiles)]
            percentiles = found[0] if found else None
            yield dataclasses.replace(
                column, field=name, percentiles=percentiles, is_text=str in kinds
            )


def groups(results: Sequence[Any]) -> dict[str, list[Any]]:
    """The results of each case (`Result.group`), in the order of each case's first result."""
    found: dict[str, list[Any]] = {}
    for result in results:
        found.setdefault(result.group, []).append(result)
    return found


def table(
    title: str, results: Sequence[Any], baselines: Mapping[str, float], *, aside: bool = False
) -> Table:
    """The table of results; of several cases, or of one, which the title then names.

    `baselines`: rates of programs without TensorFlow; each has a row, with the rate in the column
    of the results' main figure.
    """
    kind = type(results[0])
    shown = [each for each in columns(kind) if each.aside is aside]
    of_cases = groups(results)
    several = len(of_cases) > 1
    headers = [kind.subject, *(header for each in shown for header in each.headers)]
    rows = [
        [[r.name, *(cell for each in shown for cell in each.cells(r))] for r in of_case]
        for of_case in of_cases.values()
    ]
    if baselines and not several and not aside:
        main = [each.field for each in shown for _ in each.headers].index(kind.figure)
        blank = [""] * (len(headers) - 1)
        rows.append(
            [
                [name, *blank[:main], number(rate), *blank[main + 1 :]]
                for name, rate in _raw(baselines).items()
            ]
        )
    if several:
        headers = [kind.group_header, *headers]
        rows = [
            [[case, *row] for row in of_case] for case, of_case in zip(of_cases, rows, strict=True)
        ]
    words = 1 + several + sum(each.is_text for each in shown)
    return Table(title, headers, rows, text_columns=words)


def charts(results: Sequence[Any], baselines: Mapping[str, float]) -> list[Chart]:
    """A chart of each case and each column that has one; with several sizes, curves over them."""
    charted = [each for each in columns(type(results[0])) if each.chart]
    of_cases = groups(results)
    several = len(of_cases) > 1
    if several and results[0].size_bytes is not None:
        return [curves(each, results) for each in charted if each.unit == "MB/s"]
    found: list[Chart] = []
    for case, of_case in of_cases.items():
        for each in charted:
            bars = [bar for r in of_case if (bar := _bar(each, r)) is not None]
            if each.field == type(results[0]).figure:
                bars += [Bar(name, rate, "raw") for name, rate in _raw(baselines).items()]
            of = each.percentiles
            unit, caption = (each.unit, "") if of is None else (of.unit, of.caption)
            if bars:
                title = f"{each.chart}, {case}" if several else each.chart
                found.append(Bars(title, unit, bars, caption))
    return found


def _raw(baselines: Mapping[str, float]) -> dict[str, float]:
    return {f"{name} (raw)": rate for name, rate in baselines.items()}


def _bar(column: Column, result: Any) -> Bar | None:
    value = getattr(result, column.field)
    if value is None:
        return None
    if not isinstance(value, Percentiles):
        return Bar(result.name, value, result.name)
    low, middle, high = (getattr(value, each) for each in value.bar)
    more = f", {value.bar[2]} {number(high)}"
    return Bar(result.name, middle, result.name, low=low, high=high, more=more)


def curves(column: Column, results: Sequence[Any]) -> Lines:
    """The values of each variant over the size of a message."""
    points: dict[str, list[tuple[float, float]]] = {}
    for r in results:
        points.setdefault(r.name, []).append((r.size_bytes, getattr(r, column.field)))
    lines = [Line(name, of_variant) for name, of_variant in points.items()]
    caption = "MB = 10^6 bytes; both axes are logarithmic."
    return Lines(results[0].over_sizes, column.unit, lines, caption)
