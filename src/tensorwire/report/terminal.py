"""Prints sections of a report on a terminal: their tables, headlines and notes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import rich.table
from rich.console import Console
from rich.text import Text

from tensorwire.report.section import Section, Table

_FILE_COLUMNS = 160
"""The width for a file or a pipe, which have none: enough that no table is cut."""


def show(sections: Iterable[Section]) -> None:
    """Prints tables, then headline, notes and warnings; also readable in a file or a pipe."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=max(console.width, _FILE_COLUMNS))
    for section in sections:
        for table in section.tables:
            console.print(_drawn(table))
        if section.headline:
            console.print(Text(section.headline), soft_wrap=True)
        _lines(console, "note: ", section.notes)
        _lines(console, "warning: ", section.warnings)


def _lines(console: Console, kind: str, texts: Sequence[str]) -> None:
    for text in texts:
        console.print(Text(kind + text), soft_wrap=True)


def _drawn(table: Table) -> rich.table.Table:
    drawn = rich.table.Table(title=Text(table.title), title_justify="left")
    for index, column in enumerate(table.columns):
        drawn.add_column(
            Text(column), justify="left" if index < table.text_columns else "right", no_wrap=True
        )
    for group in table.groups:
        for row in group:
            drawn.add_row(*map(Text, row))
        drawn.add_section()
    return drawn
