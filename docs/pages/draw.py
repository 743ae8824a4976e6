"""Draws the output of `tensorwire top` for a recorded job: `python docs/pages/draw.py`.

The record was made by `tensorwire top --output json --interval 5` during the job of the hot-ps
tutorial.
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
    """A console that has recorded the screen."""
    rates = from_document(JobRates, json.loads((FOLDER / "top.json").read_text()))
    console = Console(
        record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False
    )
    console.print(screen(rates, _EVERY_S, _COLUMNS))
    return console


def svg() -> str:
    """The picture, without a font to download, because pages load nothing from other servers."""
    drawn = shown().export_svg(title="tensorwire top", unique_id="top")
    return re.sub(r"@font-face \{.*?\}\n?|<!--.*?-->\n?", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    (FOLDER / "top.svg").write_text(svg())
