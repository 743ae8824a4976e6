"""Records of one or several files as one report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorwire.bench import memory  # noqa: F401, its result registers itself
from tensorwire.bench.all_layers import COMMAND, Suite
from tensorwire.errors import TensorwireError
from tensorwire.k8s import layout_result  # noqa: F401
from tensorwire.measure.record import Record, Result
from tensorwire.measure.section import Report, Section
from tensorwire.report import experiments, overview, page, side_by_side


def report_of_runs(runs: Mapping[Path, Record[Result] | Suite]) -> Report:
    """One file as it was shown when it was made; of several, each command with its runs."""
    if len(runs) == 1:
        (only,) = runs.values()
        return overview.report(only) if isinstance(only, Suite) else page.of_record(only)
    commands: dict[str, dict[str, list[Record[Result]]]] = {}
    for path, run in runs.items():
        for record in [run.summary, *run.records] if isinstance(run, Suite) else [run]:
            of_runs = commands.setdefault(record.command, {})
            of_runs.setdefault(_name(path, runs), []).append(record)
    sections = []
    for command, of_runs in commands.items():
        if len(of_runs) > 1:
            sections.append(side_by_side.section(command, of_runs))
        else:
            sections += _alone(of_runs)
    return Report(f"tensorwire report of {len(runs)} runs", [], sections)


def _alone(of_runs: Mapping[str, list[Record[Result]]]) -> list[Section]:
    return [
        dataclasses.replace(shown := experiments.section(record), title=f"{shown.title}, {name}")
        for name, records in of_runs.items()
        for record in records
        if record.command != COMMAND  # what it sums up is shown itself
    ]


def _name(path: Path, runs: Mapping[Path, object]) -> str:
    """The file's, as short as tells it from the others."""
    ways: list[Callable[[Path], str]] = [lambda p: p.stem, lambda p: f"{p.parent.name}/{p.stem}"]
    for way in ways:
        if len({way(other) for other in runs}) == len(runs):
            return way(path)
    return str(path)


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
