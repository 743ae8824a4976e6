"""Where the result of a command goes: the options --output, --json and --report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorwire.errors import UsageError
from tensorwire.files import write_whole
from tensorwire.options import option

if TYPE_CHECKING:
    from tensorwire.report.section import Report


def _writable(name: str) -> Callable[[str], Path]:
    """Rejects a path that cannot be written, before the measurement starts."""

    def parse(text: str) -> Path:
        path = Path(text)
        folder = path.absolute().parent
        if not folder.is_dir():
            raise UsageError(f"{name} {path}: there is no folder {path.parent}")
        if path.is_dir():
            raise UsageError(f"{name} {path}: this is a folder: name a file")
        if not path.exists():
            try:
                tempfile.TemporaryFile(dir=folder).close()
            except OSError as error:
                raise UsageError(
                    f"{name} {path}: cannot write in {folder}: {error.strerror}"
                ) from None
        return path

    return parse


def _page(text: str) -> Path:
    """Also fails if the packages that draw pages are not installed."""
    from tensorwire.report.charts import check_installed

    check_installed()
    return _writable("--report")(text)


@dataclass(frozen=True)
class Output:
    """What standard output and files get."""

    form: str = option(
        "table",
        "What standard output gets: a table for people, or JSON and nothing else.",
        name="--output",
        choices=("table", "json"),
    )
    json_path: Path | None = option(
        None,
        "Write the record to this file.",
        name="--json",
        metavar="FILE",
        parse=_writable("--json"),
    )
    report_path: Path | None = option(
        None, "Write an HTML page with plots.", name="--report", metavar="FILE.html", parse=_page
    )

    @property
    def is_json(self) -> bool:
        return self.form == "json"

    def give(
        self,
        document: Callable[[], str],
        table: Callable[[], None],
        page: Callable[[], Report] | None = None,
    ) -> None:
        """Writes the files that are named, and prints the JSON; or `table`, which prints itself.

        Raises:
            TensorwireError: a file cannot be written.
        """
        from tensorwire.report import page as pages

        if self.json_path is not None:
            write_whole(self.json_path, document())
        if self.report_path is not None and page is not None:
            pages.write(self.report_path, page())
        if self.is_json:
            click.echo(document().rstrip("\n"))
        else:
            table()
