"""The traffic of each variable in an earlier run, which placement balances.

    {"variables": {"embedding": {"bytes_per_step": 5.1e6,
                                 "rows": [[0, 1000, 4.0e6], [1000, 90000, 1.1e6]]},
                   "dense/kernel": 8192}}

The value of a variable is an object, or only its bytes per step. `rows` (first row, row after the
last, bytes per step) gives the traffic of ranges of rows. Parts of a variable that was already
split, such as "embedding/part_0", count as its ranges of rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tensorwire.cluster import is_ps
from tensorwire.errors import UsageError
from tensorwire.files import read_json
from tensorwire.metrics.task_metrics import IN, TaskMetrics

PART = re.compile(r"(.+)/part_(\d+)")
ASSUMED_BATCH = 256
"""Batch size if none is given. It decides how dense layers compare with lookups."""


@dataclass(frozen=True)
class Crossing:
    """A tensor that goes between a worker and the ps of `variable` for that variable."""

    node: str
    """Name of the node that makes the tensor."""
    variable: str
    to_ps: bool
    shape: Sequence[int] | None
    """-1: the size is unknown; None: the rank is unknown."""
    item_bytes: int
    table_rows: int | None = None
    """Rows of the variable, if the tensor holds ids or rows of a lookup or a sparse gradient."""

    def bytes(self, batch: int, *, unique: bool = False) -> float | None:
        """The size in bytes, with `batch` for unknown dimensions; None if the rank is unknown.

        `unique`: each id counts once, as with exact rewrites. All ids are assumed equally frequent;
        this is an upper bound, because with frequent ids fewer distinct ones occur.
        """
        if self.shape is None:
            return None
        sizes: list[float] = [batch if size < 0 else size for size in self.shape]
        if unique and self.table_rows and sizes:
            sizes[0] = self.table_rows * (1 - (1 - 1 / self.table_rows) ** sizes[0])
        return math.prod(sizes) * self.item_bytes


class RowRange(NamedTuple):
    """Rows `first` (included) to `end` (excluded), and their traffic."""

    first: int
    end: int
    bytes_per_step: float


@dataclass(frozen=True)
class Traffic:
    """Bytes per step of each variable, reads plus writes, of all workers together."""

    bytes_per_step: Mapping[str, float]
    rows: Mapping[str, Sequence[RowRange]] = field(default_factory=dict)
    is_prediction: bool = False
    """True if it was computed from shapes, False if it was measured in a run."""

    def of(self, name: str, rows: int, first: int, end: int) -> float:
        """Bytes per step for rows `first` to `end` (excluded) of a variable with `rows` rows.

        0 for a variable that is not in the metrics.
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
    def predicted(
        crossings: Iterable[Crossing],
        batch: int | None = None,
        *,
        exact_rewrites: bool = False,
    ) -> Traffic | None:
        """The traffic of one worker, from the shapes of `crossings`; None if there are none.

        `batch`, or ASSUMED_BATCH, replaces unknown sizes. Tensors of unknown rank count 0 bytes.
        `exact_rewrites`: each id of a batch and its row count once.
        """
        moved: dict[str, float] = {}
        for crossing in crossings:
            size = crossing.bytes(batch or ASSUMED_BATCH, unique=exact_rewrites) or 0
            moved[crossing.variable] = moved.get(crossing.variable, 0.0) + size
        return Traffic(moved, is_prediction=True) if moved else None

    @staticmethod
    def known(
        paths: Sequence[Path],
        crossings: Sequence[Crossing],
        batch: int | None = None,
        *,
        exact_rewrites: bool = False,
    ) -> Traffic | None:
        """The traffic in files of an earlier run; without files, the predicted traffic.

        Raises:
            UsageError: see `read`.
        """
        if paths:
            return Traffic.read(paths, crossings)
        return Traffic.predicted(crossings, batch, exact_rewrites=exact_rewrites)

    @staticmethod
    def of_metrics(metrics: Sequence[TaskMetrics], crossings: Iterable[Crossing]) -> Traffic:
        """The traffic that tasks have counted, by variable.

        Args:
            metrics: of ps, of workers, or of both; if both are given, only those of the ps count.
            crossings: those of the graph that the tasks ran.

        Raises:
            UsageError: the metrics name no tensor of the graph.
        """
        owners = {(each.node, each.to_ps): each.variable for each in crossings}
        entries = [
            (tensor.peer if on_ps else tensor.task, on_ps == (tensor.direction == IN), tensor)
            for each in metrics
            for tensor in each.tensors
            if (on_ps := is_ps(tensor.task)) != is_ps(tensor.peer)
        ]
        if any(is_ps(tensor.task) for _, _, tensor in entries):
            entries = [entry for entry in entries if is_ps(entry[2].task)]
        steps: dict[str, int] = {}
        moved: dict[str, float] = {}
        for worker, to_ps, tensor in entries:
            if (variable := owners.get((tensor.name, to_ps))) is not None:
                moved[variable] = moved.get(variable, 0.0) + tensor.bytes
                # A tensor that crosses in each step was counted once per step.
                steps[worker] = max(steps.get(worker, 0), tensor.tensors)
        if not moved:
            raise UsageError(
                "the metrics name no tensor of this graph: use metrics of a run of the same model, "
                "with TF1's sessions, and with variables that are not split"
            )
        total = max(sum(steps.values()), 1)
        return Traffic({variable: size / total for variable, size in moved.items()})

    @staticmethod
    def read(paths: Sequence[Path], crossings: Iterable[Crossing] = ()) -> Traffic:
        """Reads a record of traffic, or metrics of tasks (docs/metrics.md), one file each.

        Raises:
            UsageError: the files are neither, or cannot be read.
        """
        documents = [read_json(path) for path in paths]
        if all(isinstance(each, dict) and "tensors" in each for each in documents):
            try:
                metrics = [TaskMetrics.from_json(each) for each in documents]
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(
                    f"this file does not contain metrics of a task: {error!r}"
                ) from error
            return Traffic.of_metrics(metrics, crossings)
        if len(paths) > 1:
            raise UsageError("several files of traffic must each contain the metrics of one task")
        try:
            return Traffic.from_document(documents[0])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{paths[0]} has no traffic of variables, such as "
                f'{{"variables": {{"embedding": {{"bytes_per_step": 5e6}}}}}}: {error!r}'
            ) from error

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Traffic:
        """Reads the JSON above, parsed; raises KeyError, TypeError or ValueError."""
        moved, rows = {}, {}
        for name, entry in document["variables"].items():
            if isinstance(entry, (int, float)):
                entry = {"bytes_per_step": entry}  # noqa: PLW2901
            moved[name] = float(entry["bytes_per_step"])
            ranges = [RowRange(int(a), int(b), float(m)) for a, b, m in entry.get("rows", ())]
            if moved[name] < 0 or any(r.bytes_per_step < 0 or r.first >= r.end for r in ranges):
                raise ValueError(f"the metrics of {name} are invalid")
            if ranges:
                rows[name] = ranges
        return Traffic(moved, rows)


def row_bounds(rows: int, parts: int) -> list[tuple[int, int]]:
    """First row and row after the last of each part, as TensorFlow's partitioners split.

    Parts have equal sizes; if the rows cannot be divided evenly, the first parts have one more.
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
