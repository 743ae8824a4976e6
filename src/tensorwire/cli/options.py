"""Options that several commands have."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tensorwire.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


def _in_a_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Rejects a path that cannot be written, before the measurement starts."""
    if path is None:
        return None
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{parameter.opts[0]} {path}: there is no folder {path.parent}")
    if not path.exists():
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UsageError(
                f"{parameter.opts[0]} {path}: cannot write in {folder}: {error.strerror}"
            ) from None
    return path


def _report_in_a_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Like `_in_a_folder`; also fails if the packages that draw pages are not installed."""
    if path is not None:
        from tensorwire.report.charts import check_installed

        check_installed()
    return _in_a_folder(context, parameter, path)


def json_option(command: Command) -> Command:
    """--json, as `json_path`."""
    return click.option(
        "--json",
        "json_path",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        callback=_in_a_folder,
        help="Write the record to this file.",
    )(command)


def report_option(command: Command) -> Command:
    """--report, as `report_path`."""
    return click.option(
        "--report",
        "report_path",
        metavar="FILE.html",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        callback=_report_in_a_folder,
        help="Write an HTML page with plots.",
    )(command)
