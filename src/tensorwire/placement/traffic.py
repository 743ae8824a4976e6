"""What an earlier run moved for each variable: the record that placement weighs by.

    {"variables": {"embedding": {"bytes_per_step": 5.1e6,
                                 "rows": [[0, 1000, 4.0e6], [1000, 90000, 1.1e6]]},
                   "dense/kernel": 8192}}

A variable is an object or just its bytes a step. `rows` (first row, row after the last, bytes a
step) says how hot ranges of rows are. Parts of a variable that was split already, named as
"embedding/part_0", count as its ranges of rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tensorwire.errors import UsageError

PART = re.compile(r"(.+)/part_(\d+)")


class RowRange(NamedTuple):
    """Rows `first` up to `end`, not included, and what moved for them."""

    first: int
    end: int
    bytes_per_step: float


@dataclass(frozen=True)
class Traffic:
    """Bytes a step and variable, read and written together, of all workers."""

    bytes_per_step: Mapping[str, float]
    rows: Mapping[str, Sequence[RowRange]] = field(default_factory=dict)

    def of(self, name: str, rows: int, first: int, end: int) -> float:
        """Bytes a step for rows `first` to `end` of the `rows` rows of a variable.

        A variable that the figures do not know moved nothing.
        """
        ranges = self.rows.get(name) or self._parts(name, rows)
        if not ranges:
            return self.bytes_per_step.get(name, 0.0) * (end - first) / max(rows, 1)
        return sum(
            each.bytes_per_step * _overlap(first, end, each) / (each.end - each.first)
            for each in ranges
            if each.end > each.first
        )

    def knows(self, name: str) -> bool:
        return name in self.bytes_per_step or f"{name}/part_0" in self.bytes_per_step

    def _parts(self, name: str, rows: int) -> list[RowRange]:
        if f"{name}/part_0" not in self.bytes_per_step:
            return []
        parts: list[float] = []
        while (part := f"{name}/part_{len(parts)}") in self.bytes_per_step:
            parts.append(self.bytes_per_step[part])
        bounds = row_bounds(rows, len(parts))
        return [RowRange(*bounds[i], moved) for i, moved in enumerate(parts)]

    @staticmethod
    def read(path: Path) -> Traffic:
        """Raises UsageError where the file is no such record."""
        try:
            document = json.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{path} is not JSON: {error}") from error
        try:
            return Traffic.from_document(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{path} has no traffic of variables, such as "
                f'{{"variables": {{"embedding": {{"bytes_per_step": 5e6}}}}}}: {error!r}'
            ) from error

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Traffic:
        """Of the JSON above, parsed; raises KeyError, TypeError or ValueError where it is not."""
        moved, rows = {}, {}
        for name, entry in document["variables"].items():
            if isinstance(entry, (int, float)):
                entry = {"bytes_per_step": entry}  # noqa: PLW2901
            moved[name] = float(entry["bytes_per_step"])
            ranges = [RowRange(int(a), int(b), float(m)) for a, b, m in entry.get("rows", ())]
            if moved[name] < 0 or any(r.bytes_per_step < 0 or r.first >= r.end for r in ranges):
                raise ValueError(f"the figures of {name} cannot be")
            if ranges:
                rows[name] = ranges
        return Traffic(moved, rows)

    def to_document(self) -> dict[str, Any]:
        """What `from_document` reads."""
        return {
            "variables": {
                name: {"bytes_per_step": moved, "rows": [list(r) for r in self.rows.get(name, ())]}
                for name, moved in self.bytes_per_step.items()
            }
        }


def row_bounds(rows: int, parts: int) -> list[tuple[int, int]]:
    """First row and row after the last of each part, as TensorFlow's partitioners cut.

    Even, and the first parts have one more where it does not divide.
    """
    size, extra = divmod(rows, parts)
    bounds, first = [], 0
    for part in range(parts):
        end = first + size + (part < extra)
        bounds.append((first, end))
        first = end
    return bounds


def _overlap(first: int, end: int, rows: RowRange) -> int:
    return max(0, min(end, rows.end) - max(first, rows.first))
