"""Options of several commands: where the result goes, and the two ends of a measurement."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tensorwire.cli.click_extensions import refuse_unused, takes
from tensorwire.cluster import split_address
from tensorwire.errors import UsageError
from tensorwire.files import write_whole
from tensorwire.options import option

if TYPE_CHECKING:
    from tensorwire.report.section import Report

_TWO = "is for two hosts: give --job server, or --job client --target HOST:PORT, too"
SERVER, CLIENT = "server", "client"
DEFAULT_PORT = 12222


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


@dataclass(frozen=True)
class TwoEnds:
    """The options for this host's part in a measurement between two hosts."""

    SECTIONS: ClassVar = {"Two hosts": ("job", "target", "port", "timeout_s")}

    job: str | None = option(
        None, "Role of this host. The server ends with its client.", choices=(SERVER, CLIENT)
    )
    """SERVER, CLIENT, or None: both ends run here."""
    target: str | None = option(None, "Address of the server, for the client.", metavar="HOST:PORT")
    port: int = option(
        DEFAULT_PORT,
        "Port of the server; what is measured uses the ports above it, and those + 20000.",
        least=1,
        most=65535,
    )
    timeout_s: float = option(
        120.0, "Seconds to wait for the other host.", name="--timeout", above=0
    )

    def __post_init__(self) -> None:
        if (self.job == CLIENT) != (self.target is not None):
            raise UsageError(
                "two hosts need --job server on one and --job client --target HOST:PORT on the "
                "other"
            )
        if self.target is not None:
            split_address(self.target)


def two_ends_options(command: Callable[..., Any]) -> Any:
    """--job, --target, --port and --timeout; the command gets them as `ends`."""

    @functools.wraps(command)
    def with_ends(*, ends: TwoEnds, **others: Any) -> Any:
        if ends.job is None:
            refuse_unused(_TWO, "port", "timeout_s")
        return command(ends=ends, **others)

    return takes(TwoEnds, "ends")(with_ends)
