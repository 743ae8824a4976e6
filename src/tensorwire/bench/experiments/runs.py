"""Records of one or several files as one report."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tensorwire.bench import experiments
from tensorwire.bench.experiments.all_layers import COMMAND
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.record import Metric, Record, Result
from tensorwire.bench.frame.showing import in_brackets
from tensorwire.bench.layouts import layout_result  # noqa: F401
from tensorwire.cli.click_extensions import takes
from tensorwire.cli.options import Output
from tensorwire.dataclass_json import json_text
from tensorwire.doctor import records as doctor_records
from tensorwire.doctor.diagnose import diagnose
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.files import read_json
from tensorwire.report import doctor, terminal
from tensorwire.report.section import Bar, Bars, Report, Section, Table
from tensorwire.units import number

# The results of all experiments register themselves.
for _module in pkgutil.iter_modules(experiments.__path__):
    importlib.import_module(f"{experiments.__name__}.{_module.name}")

Runs = Mapping[str, Sequence[Record[Result]]]
"""The records of each run, by the run's name."""
_MOST_BARS = 24


Cells = dict[tuple[str, ...], dict[str, str]]
"""The text of each run, by the first cells of a row."""


def section(command: str, runs: Runs) -> Section:
    """A section that compares runs: the figures of all runs in one table, the ratios in another.

    Args:
        command: the command of all records.
        runs: the records of each run; several if the run measured several sizes.
    """
    figures: Cells = {}
    ratios: Cells = {}
    bars: dict[Metric, list[Bar]] = {}
    for run, records in runs.items():
        for record in records:
            for each in (result.metric for result in record.results):
                row = (f"{each.of}, {each.unit}", each.variant)
                figures.setdefault(row, {})[run] = number(each.value)
                chart = dataclasses.replace(each, variant="", value=0.0)
                bar = Bar(f"{each.variant}, {run}", each.value, each.variant)
                bars.setdefault(chart, []).append(bar)
            for name, ratio in record.ratios.items():
                ratios.setdefault((name,), {})[run] = f"{ratio.value:.2f}{in_brackets(ratio)}"
    tables = [_machines(runs), _table("Figures", ["measured", "variant"], figures, runs)]
    if ratios:
        title = "How many times as fast, and the 95 % interval"
        tables.append(_table(title, ["above 1: the first is faster"], ratios, runs))
    charts = [
        Bars(of.of, of.unit, sorted(of_chart, key=lambda bar: bar.series), caption)
        for of, of_chart in bars.items()
        for caption in ["" if of.more_is_better else "Less is better."]
        if len(of_chart) <= _MOST_BARS
    ]
    return Section(f"{command}, {len(runs)} runs", charts=charts, tables=tables)


def _table(title: str, columns: Sequence[str], cells: Cells, runs: Runs) -> Table:
    """A column for each run; with several columns before these, a group for each first cell."""
    of_first: dict[str, list[list[str]]] = {}
    for row, texts in cells.items():
        group = of_first.setdefault(row[0] if len(columns) > 1 else "", [])
        group.append([*row, *(texts.get(run, "-") for run in runs)])
    return Table(title, [*columns, *runs], [*of_first.values()], text_columns=len(columns))


def _machines(runs: Runs) -> Table:
    rows = []
    for run, (record, *_) in runs.items():
        host = record.host
        where = [f"{host.cpu}, {host.cores} cores", host.kernel, record.time or "-"]
        rows.append([run, record.version, record.tensorflow or "-", *where])
    columns = ["run", "tensorwire", "TensorFlow", "machine", "Linux", "when"]
    return Table("Runs", columns, [rows], text_columns=len(columns))


def report_of_runs(runs: Mapping[Path, Record[Any]]) -> Report:
    """The report of one file, as its command showed it, or a comparison of several files."""
    if len(runs) == 1:
        (only,) = runs.values()
        return showing.report(only)
    commands: dict[str, dict[str, list[Record[Result]]]] = {}
    for path, run in runs.items():
        for record in [run, *run.records]:
            of_runs = commands.setdefault(record.command, {})
            of_runs.setdefault(_name(path, runs), []).append(record)
    sections = []
    for command, of_runs in commands.items():
        if len(of_runs) > 1:
            sections.append(section(command, of_runs))
        else:
            sections += _alone(of_runs)
    return Report(f"tensorwire report of {len(runs)} runs", [], sections)


def _alone(of_runs: Mapping[str, list[Record[Result]]]) -> list[Section]:
    return [
        dataclasses.replace(shown := showing.section(record), title=f"{shown.title}, {name}")
        for name, records in of_runs.items()
        for record in records
        if record.command != COMMAND  # the summary: its records are shown themselves
    ]


def _name(path: Path, runs: Mapping[Path, object]) -> str:
    """The shortest name of the file that is unique among the runs."""
    ways: list[Callable[[Path], str]] = [lambda p: p.stem, lambda p: f"{p.parent.name}/{p.stem}"]
    for way in ways:
        if len({way(other) for other in runs}) == len(runs):
            return way(path)
    return str(path)


def read(path: Path) -> Record[Any]:
    """Reads the file that `--json` of any command wrote.

    Raises:
        UsageError: the file cannot be read, or is not a record; the message names it.
    """
    document = read_json(path)
    try:
        return Record.from_document(document)
    except TensorwireError:
        raise UsageError(
            f"{path} is no record of a benchmark: give files that --json wrote"
        ) from None


@click.command(
    "report",
    epilog="""\b
Examples:
  tensorwire report transfer.json
  tensorwire report before.json after.json --report page.html""",
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE.json…",
    type=click.Path(dir_okay=False, path_type=Path),
)
@takes(Output, "output")
def command(*, files: tuple[Path, ...], output: Output) -> None:
    """Show records that --json wrote; runs of the same command side by side.

    A record of `tensorwire doctor` is diagnosed again; several are for `doctor --record`.
    """
    if len(set(files)) < len(files):
        raise UsageError("a file is named twice")
    documents = {str(path): read_json(path) for path in files}
    first = documents[str(files[0])]
    of_doctor = isinstance(first, dict) and first.get("command") == doctor_records.COMMAND
    if len(files) == 1 and of_doctor:
        diagnosis = diagnose(doctor_records.read(files[0]))
        shown = doctor.page(diagnosis)
        show = functools.partial(click.echo, "\n".join(doctor.lines(diagnosis)))
    else:
        shown = report_of_runs({path: read(path) for path in files})
        show = functools.partial(terminal.show, shown.sections)
    output.give(lambda: json_text(documents), show, lambda: shown)
