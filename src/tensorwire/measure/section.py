"""The parts of a report: plain data that the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Cells of text."""

    title: str
    columns: Sequence[str]
    groups: Sequence[Sequence[Sequence[str]]]
    """Rows that belong together, with a line between one group and the next."""
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
    """The key of the colour: the side's name, so that a side has one colour in every chart."""
    low: float | None = None
    high: float | None = None
    more: str = ""
    """Text after the figure."""


@dataclass(frozen=True)
class Bars:
    """Lengths from zero, side by side."""

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
    """A chart of what is left from stage to stage, and what each stage loses."""

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
    """A part of a report: what it says in a sentence, then pictures, then the figures."""

    title: str
    headline: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    """Caveats that a reader must know before believing the figures."""
    warnings: Sequence[str] = ()
    """Why some of them should not be believed."""
    is_detail: bool = False
    """True if a page shows the section folded."""


@dataclass(frozen=True)
class Report:
    """A page."""

    title: str
    facts: Sequence[str]
    """The place and the tools of the measurement."""
    sections: Sequence[Section]
    headlines: Sequence[str] = ()
    """The findings, the most important first."""
