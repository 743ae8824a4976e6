"""A record as a section: one description for the terminal and the page."""

from __future__ import annotations

import dataclasses

from tensorwire.measure.comparison import doubts, noise_notes, noise_warnings, ratio_table
from tensorwire.measure.host_pool import lab_notes
from tensorwire.measure.record import Record, Result
from tensorwire.measure.section import Section


def section(record: Record[Result], *, follows_others: bool = False) -> Section:
    """The record as people read it.

    Args:
        record: of any experiment.
        follows_others: the load before it was that of our own experiments.

    Raises:
        ValueError: nothing was measured.
    """
    if not record.results:
        raise ValueError("a record without a result")
    kind = type(record.results[0])
    shown = kind.section(record)
    return dataclasses.replace(
        shown,
        tables=[*shown.tables, *ratio_table(record.ratios)],
        notes=[*shown.notes, *lab_notes(record.lab), *noise_notes(record.noise)],
        warnings=[
            *([] if follows_others else noise_warnings(record.noise, record.host)),
            *doubts(record.ratios, kind.more_rounds_by),
        ],
    )
