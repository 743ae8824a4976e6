"""A page of a report: one HTML file that needs no other file, no network and no script."""

from __future__ import annotations

import sys
from pathlib import Path

from tensorwire.files import write_whole
from tensorwire.measure import comparison
from tensorwire.measure.host_pool import lab_notes
from tensorwire.measure.record import Record, Result
from tensorwire.measure.section import Chart, Report
from tensorwire.report import charts

_WIDTHS_PX = {"wide": 720, "narrow": 340}
"""Each chart is drawn for a desktop and for a phone; the page's CSS shows the one that fits."""


def of_record(record: Record[Result]) -> Report:
    """The page of one experiment."""
    section = comparison.section(record)
    return Report(
        title=f"tensorwire {record.command}",
        facts=facts(record),
        sections=[section, *type(record.results[0]).details(record)],
        headlines=[section.headline] if section.headline else [],
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


def write(path: Path, report: Report) -> None:
    """Writes the page atomically, and prints its path to standard error.

    Raises:
        TensorwireError: the file cannot be written, or what draws is not installed.
    """
    write_whole(path, html(report))
    print(f"the page is at {path.absolute()}", file=sys.stderr)


def html(report: Report) -> str:
    """The page.

    Raises:
        TensorwireError: what draws is not installed.
    """
    charts.check_installed()
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tensorwire.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text: str = environment.get_template("page.html").render(report=report, drawings=_drawings)
    return text


def _drawings(chart: Chart) -> dict[str, str]:
    return {name: charts.svg(chart, width_px) for name, width_px in _WIDTHS_PX.items()}
