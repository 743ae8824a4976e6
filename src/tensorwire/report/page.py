"""A page of one record: HTML with its plots drawn in, that needs no other file and no network."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tensorwire.bench.record import (
    Record,
    ServeResult,
    StepMs,
    StepsResult,
    StrategyResult,
    TransferResult,
)
from tensorwire.bench.sides import side_name
from tensorwire.bench.stats import Ratio
from tensorwire.errors import TensorwireError
from tensorwire.report.tables import number, spread_notes

_LABEL_PX = 150
_PLOT_PX = 520
_VALUE_PX = 130
_ROW_PX = 28

_STYLE = """
:root { color-scheme: light dark; --bar: #3b82c4; --other: #9aa5b1; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; } th, td { padding: .25em .9em .25em 0; text-align: right; }
th:first-child, td:first-child { text-align: left; } th { border-bottom: 1px solid; }
svg { max-width: 100%; height: auto; } svg text { font-size: 13px; fill: currentColor; }
.bar { fill: var(--bar); } .ceiling { fill: var(--other); }
.range { stroke: var(--bar); stroke-width: 3; }
.note { opacity: .8; }
"""


@dataclass(frozen=True)
class Bar:
    """One bar of a plot; where `low` and `high` are given, a line from one to the other instead."""

    label: str
    value: float
    kind: str = "bar"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Plot:
    """Bars side by side from zero, so that their lengths compare as the figures do."""

    title: str
    unit: str
    bars: Sequence[Bar]

    def svg(self) -> str:
        """The plot as an SVG element; what it shows is in words too, for who cannot see it."""
        top = max((bar.high or bar.value for bar in self.bars), default=0.0) or 1.0
        width = _LABEL_PX + _PLOT_PX + _VALUE_PX
        words = "; ".join(f"{bar.label}: {number(bar.value)} {self.unit}" for bar in self.bars)
        parts = [
            f'<svg role="img" aria-label="{escape(self.title)}: {escape(words)}" '
            f'viewBox="0 0 {width} {len(self.bars) * _ROW_PX}" width="{width}">'
        ]
        for row, bar in enumerate(self.bars):
            parts += self._row(bar, row * _ROW_PX, _PLOT_PX / top)
        return "\n".join([*parts, "</svg>"])

    def _row(self, bar: Bar, y: int, px_per_unit: float) -> list[str]:
        middle = y + _ROW_PX / 2
        end = _LABEL_PX + (bar.high or bar.value) * px_per_unit
        parts = [f'<text x="0" y="{middle + 4:.1f}">{escape(bar.label)}</text>']
        if bar.low is None:
            parts.append(
                f'<rect class="{bar.kind}" x="{_LABEL_PX}" y="{y + 4}" '
                f'width="{bar.value * px_per_unit:.1f}" height="{_ROW_PX - 8}"/>'
            )
        else:
            start = _LABEL_PX + bar.low * px_per_unit
            dot = _LABEL_PX + bar.value * px_per_unit
            parts.append(
                f'<line class="range" x1="{start:.1f}" x2="{end:.1f}" '
                f'y1="{middle:.1f}" y2="{middle:.1f}"/>'
            )
            parts.append(f'<circle class="bar" cx="{dot:.1f}" cy="{middle:.1f}" r="6"/>')
        text = f"{number(bar.value)} {self.unit}"
        parts.append(f'<text x="{end + 10:.1f}" y="{middle + 4:.1f}">{escape(text)}</text>')
        return parts


def transfer_plots(results: Sequence[TransferResult], ceilings: Mapping[str, float]) -> list[Plot]:
    """The rates, with the ceilings, and the steps' times."""
    bars = [
        Bar(side_name(result.protocol, result.tensor_fuse), result.mb_per_s) for result in results
    ]
    bars += [Bar(f"{name} (raw)", rate, "ceiling") for name, rate in ceilings.items()]
    return [
        Plot("Rate, MB/s (MB = 10^6 bytes)", "MB/s", bars),
        _step_plot(
            "Time of a step", [(side_name(r.protocol, r.tensor_fuse), r.step_ms) for r in results]
        ),
    ]


def steps_plots(results: Sequence[StepsResult]) -> list[Plot]:
    """The steps' times, a plot a case."""
    cases = dict.fromkeys(result.case for result in results)
    return [
        _step_plot(
            f"Time of a step, {case}",
            [(side_name(r.protocol, r.tensor_fuse), r.step_ms) for r in results if r.case == case],
        )
        for case in cases
    ]


def strategy_plots(results: Sequence[StrategyResult]) -> list[Plot]:
    """Functions a second, a plot a case."""
    cases = dict.fromkeys(result.case for result in results)
    return [
        Plot(
            f"Functions a second, {case}",
            "/s",
            [Bar(r.protocol, r.functions_per_s) for r in results if r.case == case],
        )
        for case in cases
    ]


def serve_plots(results: Sequence[ServeResult]) -> list[Plot]:
    """Requests a second, how long they took, and what they cost the ps."""
    latencies = [("median", [r.latency_us.p50 for r in results])]
    latencies.append(("99th percentile", [r.latency_us.p99 for r in results]))
    return [
        Plot("Requests a second", "/s", [Bar(r.protocol, r.requests_per_s) for r in results]),
        *(
            Plot(
                f"Time of a request, {name}, microseconds",
                "us",
                [Bar(r.protocol, time) for r, time in zip(results, times, strict=True)],
            )
            for name, times in latencies
        ),
        Plot(
            "CPU time of the ps for a request, microseconds",
            "us",
            [Bar(r.protocol, r.ps_cpu_us_per_request) for r in results],
        ),
    ]


def _step_plot(title: str, steps: Sequence[tuple[str, StepMs]]) -> Plot:
    bars = [Bar(name, step.p50, low=step.min, high=step.p90) for name, step in steps]
    return Plot(f"{title}: fastest, median and 90th percentile, ms", "ms", bars)


def write(path: Path, record: Record, plots: Sequence[Plot], ratios: Mapping[str, Ratio]) -> None:
    """Writes the page, whole or not at all.

    Raises:
        TensorwireError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(html(record, plots, ratios), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TensorwireError(f"cannot write {path}: {error.strerror}") from error


def html(record: Record, plots: Sequence[Plot], ratios: Mapping[str, Ratio]) -> str:
    """The page."""
    title = f"tensorwire {record.command}"
    host = record.host
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p>tensorwire {escape(record.version)}, TensorFlow {escape(record.tensorflow)}; "
        f"{escape(host.cpu)}, {host.cores} cores, Linux {escape(host.kernel)}</p>",
    ]
    for plot in plots:
        sections += [f"<h2>{escape(plot.title)}</h2>", plot.svg()]
    if ratios:
        rows = [
            [name, f"{r.value:.2f}", f"{r.low:.2f} - {r.high:.2f}"] for name, r in ratios.items()
        ]
        columns = ["above 1: the first is faster", "median", "middle half of the rounds"]
        sections += ["<h2>How many times as fast</h2>", _table(columns, rows)]
    sections += [f'<p class="note">Note: {escape(note)}</p>' for note in spread_notes(ratios)]
    sections += ["<h2>Figures</h2>", _result_table(record)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body>\n" + "\n".join(sections) + "\n</body></html>"
    )


def _result_table(record: Record) -> str:
    rows: list[dict[str, str]] = []
    for result in record.results:
        row: dict[str, str] = {}
        for name, value in dataclasses.asdict(result).items():
            if isinstance(value, dict):
                row |= {f"{name} {part}": number(figure) for part, figure in value.items()}
            elif isinstance(value, float):
                row[name] = number(value)
            else:
                row[name] = "-" if value is None else str(value)
        rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return _table(columns, [[row.get(name, "") for name in columns] for row in rows])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


def keep(
    record: Record,
    plots: Sequence[Plot],
    ratios: Mapping[str, Ratio],
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Writes what was asked for of the record and the page.

    Raises:
        TensorwireError: a file cannot be written.
    """
    if json_path is not None:
        record.write(json_path)
    if report_path is not None:
        write(report_path, record, plots, ratios)
