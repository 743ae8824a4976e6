"""The parts of a report: plain data for both the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table whose cells are text."""

    title: str
    columns: Sequence[str]
    groups: Sequence[Sequence[Sequence[str]]]
    """Groups of rows; a line separates one group from the next."""
    text_columns: int = 1
    """Number of columns at the left that contain words; the others contain numbers."""

    @property
    def rows(self) -> list[Sequence[str]]:
        return [row for group in self.groups for row in group]


@dataclass(frozen=True)
class Bar:
    """One bar of `Bars`; `low` and `high` are the ends of the error line."""

    label: str
    value: float
    series: str
    """The side's name; it selects the colour, which is the same in every chart."""
    low: float | None = None
    high: float | None = None
    more: str = ""
    """Text after the value."""


@dataclass(frozen=True)
class Bars:
    """A bar chart; all bars start at zero."""

    title: str
    unit: str
    bars: Sequence[Bar]
    caption: str = ""


@dataclass(frozen=True)
class WaterfallStage:
    """One stage of a `Waterfall`: the part of `before` that is left at this stage."""

    label: str
    value: float
    series: str
    before: float | None = None


@dataclass(frozen=True)
class Waterfall:
    """A chart of the value that is left at each stage, and of the loss at each stage."""

    title: str
    unit: str
    stages: Sequence[WaterfallStage]
    caption: str = ""


@dataclass(frozen=True)
class Line:
    """The points (x, y) of one side."""

    series: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Lines:
    """Curves; both axes are logarithmic."""

    title: str
    unit: str
    lines: Sequence[Line]
    caption: str = ""
    over: str = "bytes"
    """The unit of x: "bytes", "workers"."""


Chart = Bars | Waterfall | Lines


@dataclass(frozen=True)
class Section:
    """A part of a report: a headline with the result, then charts, then tables and notes."""

    title: str
    headline: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    """Facts that a reader needs to interpret the figures."""
    warnings: Sequence[str] = ()
    """Reasons why some figures may be wrong."""


@dataclass(frozen=True)
class Report:
    """A page."""

    title: str
    facts: Sequence[str]
    """Versions, machine and time of the measurement."""
    sections: Sequence[Section]
    headlines: Sequence[str] = ()
    """The main results, the most important first."""
