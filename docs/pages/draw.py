"""Draws `tensorwire top` as it showed the recorded job: `python docs/pages/draw.py`.

The record is from `tensorwire top --once --json --interval 5` beside the job of the tutorial on
a hot ps.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

from rich.console import Console

from tensorwire.dataclass_json import from_document
from tensorwire.metrics.rates import JobRates
from tensorwire.report.top import screen

FOLDER = Path(__file__).parent
_EVERY_S = 5.0
_COLUMNS = 80


def shown() -> Console:
    """A console that has shown the screen, and recorded it."""
    rates = from_document(JobRates, json.loads((FOLDER / "top.json").read_text()))
    console = Console(
        record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False
    )
    console.print(screen(rates, _EVERY_S, _COLUMNS))
    return console


def svg() -> str:
    """The picture; its font is the reader's, because a page loads nothing from elsewhere."""
    drawn = shown().export_svg(title="tensorwire top", unique_id="top")
    return re.sub(r"@font-face \{.*?\}\n?|<!--.*?-->\n?", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    (FOLDER / "top.svg").write_text(svg())
