"""Records of one or several files as one report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tensorwire.bench.experiments import all_layers, tails  # noqa: F401, their results register themselves
from tensorwire.bench.experiments.all_layers import COMMAND, Suite
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.record import Metric, Record, Result
from tensorwire.bench.frame.showing import in_brackets
from tensorwire.bench.layouts import layout_result  # noqa: F401
from tensorwire.cli.options import report_option
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.report import page, terminal
from tensorwire.report.section import Bar, Bars, Report, Section, Table
from tensorwire.units import number

Runs = Mapping[str, Sequence[Record[Result]]]
"""The records of each run, by the run's name."""
_MOST_BARS = 24


def section(command: str, runs: Runs) -> Section:
    """A section that compares runs: the figures of all runs in one table, the ratios in another.

    Args:
        command: the command of all records.
        runs: the records of each run; several if the run measured several sizes.
    """
    return Section(
        f"{command}, {len(runs)} runs",
        charts=_charts(runs),
        tables=[_machines(runs), _figures(runs), *_ratios(runs)],
    )


def _machines(runs: Runs) -> Table:
    rows = [
        [
            name,
            records[0].version,
            records[0].tensorflow or "-",
            f"{records[0].host.cpu}, {records[0].host.cores} cores",
            records[0].host.kernel,
            records[0].time or "-",
        ]
        for name, records in runs.items()
    ]
    columns = ["run", "tensorwire", "TensorFlow", "machine", "Linux", "when"]
    return Table("Runs", columns, [rows], text_columns=len(columns))


def _by_measurement(runs: Runs) -> dict[tuple[str, str], dict[tuple[str, str], Metric]]:
    """The metric of each variant and run, by measurement and unit."""
    found: dict[tuple[str, str], dict[tuple[str, str], Metric]] = {}
    for name, records in runs.items():
        for record in records:
            for each in (result.metric for result in record.results):
                found.setdefault((each.of, each.unit), {})[each.variant, name] = each
    return found


def _figures(runs: Runs) -> Table:
    groups = []
    for (of, unit), figures in _by_measurement(runs).items():
        variants = dict.fromkeys(variant for variant, _ in figures)
        groups.append(
            [
                [
                    f"{of}, {unit}",
                    variant,
                    *(
                        number(figures[variant, name].value) if (variant, name) in figures else "-"
                        for name in runs
                    ),
                ]
                for variant in variants
            ]
        )
    return Table("Figures", ["measured", "variant", *runs], groups, text_columns=2)


def _ratios(runs: Runs) -> list[Table]:
    of_run = {
        name: {key: ratio for record in records for key, ratio in record.ratios.items()}
        for name, records in runs.items()
    }
    keys = dict.fromkeys(key for ratios in of_run.values() for key in ratios)
    if not keys:
        return []
    rows = [
        [
            key,
            *(
                f"{ratios[key].value:.2f}{in_brackets(ratios[key])}" if key in ratios else "-"
                for ratios in of_run.values()
            ),
        ]
        for key in keys
    ]
    columns = ["above 1: the first is faster", *of_run]
    return [Table("How many times as fast, and the 95 % interval", columns, [rows])]


def _charts(runs: Runs) -> list[Bars]:
    charts = []
    for (of, unit), figures in _by_measurement(runs).items():
        first = next(iter(figures.values()))
        bars = [
            Bar(f"{variant}, {name}", each.value, variant)
            for (variant, name), each in sorted(figures.items(), key=lambda entry: entry[0][0])
        ]
        if len(bars) <= _MOST_BARS:
            caption = "" if first.more_is_better else "Less is better."
            charts.append(Bars(of, unit, bars, caption))
    return charts


def report_of_runs(runs: Mapping[Path, Record[Any]]) -> Report:
    """The report of one file, as its command showed it, or a comparison of several files."""
    if len(runs) == 1:
        (only,) = runs.values()
        return showing.report(only)
    commands: dict[str, dict[str, list[Record[Result]]]] = {}
    for path, run in runs.items():
        for record in [run, *(run.records if isinstance(run, Suite) else ())]:
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
        TensorwireError: the file cannot be read, or is not a record; the message names it.
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
@report_option
def command(*, files: tuple[Path, ...], report_path: Path | None) -> None:
    """Show records that --json wrote; runs of the same command side by side."""
    if len(set(files)) < len(files):
        raise UsageError("a file is named twice")
    shown = report_of_runs({path: read(path) for path in files})
    if report_path is not None:
        page.write(report_path, shown)
    terminal.show(shown.sections)
