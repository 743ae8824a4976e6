"""What `bench all` found: the records of its experiments, and what failed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwire.bench.record import (
    LayerResult,
    Record,
    Result,
    json_text,
    not_a_record,
)
from tensorwire.errors import TensorwireError
from tensorwire.files import write_whole

COMMAND = "bench all"


@dataclass(frozen=True)
class Suite:
    """One call of `bench all`."""

    summary: Record[LayerResult]
    """What is left of the link at each layer; its ratios are those of the layers."""
    records: Sequence[Record[Result]]
    failures: Mapping[str, str] = field(default_factory=dict)
    """Of each layer that has no record why."""
    notes: Sequence[str] = ()

    def to_json(self) -> str:
        """The summary, which is a record as any other, with the others within it."""
        return json_text(
            {
                **self.summary.document(),
                "records": [record.document() for record in self.records],
                "failures": dict(self.failures),
                "notes": list(self.notes),
            }
        )

    @staticmethod
    def from_document(document: Any) -> Suite:
        """Reads what `to_json` wrote.

        Raises:
            TensorwireError: it is no such record.
        """
        summary: Any = Record.from_document(document)
        try:
            return Suite(
                summary=summary,
                records=[Record.from_document(each) for each in document["records"]],
                failures=dict(document["failures"]),
                notes=list(document["notes"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise not_a_record(error) from error

    def write(self, path: Path) -> None:
        """Writes the JSON to `path`, whole or not at all.

        Raises:
            TensorwireError: the file cannot be written.
        """
        write_whole(path, self.to_json())


def read(path: Path) -> Record[Result] | Suite:
    """Reads the file that `--json` of any command wrote.

    Raises:
        TensorwireError: it cannot be read, or is no record; the message names the file.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("command") == COMMAND:
            return Suite.from_document(document)
        return Record.from_document(document)
    except OSError as error:
        raise TensorwireError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TensorwireError):
        raise TensorwireError(
            f"{path} is no record of a benchmark: give files that --json wrote"
        ) from None
