"""`tensorwire report`: shows records from files again."""

from __future__ import annotations

from pathlib import Path

import click

from tensorwire.cli.options import report_option
from tensorwire.errors import UsageError


@click.command(
    epilog="""\b
Examples:
  tensorwire report transfer.json
  tensorwire report before.json after.json --report page.html"""
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE.json…",
    type=click.Path(dir_okay=False, path_type=Path),
)
@report_option
def report(*, files: tuple[Path, ...], report_path: Path | None) -> None:
    """Show records that --json wrote; runs of the same command side by side."""
    from tensorwire.report import page, terminal
    from tensorwire.report.runs import read, report_of_runs

    if len(set(files)) < len(files):
        raise UsageError("a file is named twice")
    shown = report_of_runs({path: read(path) for path in files})
    if report_path is not None:
        page.write(report_path, shown)
    terminal.show(shown.sections)
