"""A page of a report: one HTML file that needs no other file, no network and no script."""

from __future__ import annotations

import sys
from pathlib import Path

from tensorwire.files import write_whole
from tensorwire.report import charts
from tensorwire.report.section import Chart, Report

_WIDTHS_PX = {"wide": 720, "narrow": 340}
"""Each chart is drawn for a desktop and for a phone; the page's CSS shows the one that fits."""


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
