"""Tables in Markdown, as in the documents."""

from __future__ import annotations

from tensorwire.report.section import Table


def text(table: Table) -> str:
    """The lines of a table, without its title."""
    sides = [" --- " if at < table.text_columns else " ---: " for at in range(len(table.columns))]
    lines = [f"|{'|'.join(sides)}|"]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join([f"| {' | '.join(table.columns)} |", *lines]) + "\n"
