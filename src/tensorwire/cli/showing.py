"""What every command that measured does at its end: files, then tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tensorwire.measure.record import Record, Result


def keep_and_show(
    record: Record[Result],
    json_path: Path | None,
    report_path: Path | None,
    notes: Sequence[str] = (),
) -> None:
    """Writes the record and the page where they are asked for, and prints the tables.

    Raises:
        TensorwireError: a file cannot be written.
    """
    from tensorwire.report import experiments, page, terminal

    if json_path is not None:
        record.write(json_path)
    if report_path is not None:
        page.write(report_path, page.of_record(record))
    section = experiments.section(record)
    terminal.show([dataclasses.replace(section, notes=[*notes, *section.notes])])
