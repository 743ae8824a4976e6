"""Records as sections and pages of a report, with what makes their figures doubtful."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorwire.bench.frame.hosts import lab_notes
from tensorwire.bench.frame.record import Noise, Ratio, Record, Result
from tensorwire.cli.options import Output
from tensorwire.machine import Machine
from tensorwire.report.section import Report, Section, Table

_FAR = 1.0 / 3.0
"""A wider interval, relative to its ratio, causes a warning."""
_BUSY_LOAD = 0.5
_MUCH_STEAL = 0.02
_MANY = 8
_ALL = 0.99
"""This share of the bytes counts as all, because greetings and small tensors always use TCP."""


def give(record: Record[Result], output: Output, notes: Sequence[str] = ()) -> None:
    """Writes the record and the page where the command asks for them, and prints the tables.

    Raises:
        TensorwireError: a file cannot be written.
    """
    from tensorwire.report import terminal

    shown = section(record)
    output.give(
        record.to_json,
        lambda: terminal.show([dataclasses.replace(shown, notes=[*notes, *shown.notes])]),
        lambda: report(record),
    )


def section(record: Record[Result], *, follows_others: bool = False) -> Section:
    """The record as a section of a report.

    Args:
        record: the record of any experiment.
        follows_others: True if the load before the measurement came from our own experiments.
    """
    shown = record.kind.section(record)
    transports = "; ".join(f"{name} {used}" for name, used in record.transports.items())
    return dataclasses.replace(
        shown,
        tables=[*shown.tables, *ratio_table(record.ratios)],
        notes=[
            *shown.notes,
            *([f"transport: {transports}"] if transports else []),
            *lab_notes(record.lab),
            *noise_notes(record.noise),
        ],
        warnings=[
            *shown.warnings,
            *([] if follows_others else noise_warnings(record.noise, record.host)),
            *doubts(record.ratios, record.kind.more_rounds_by),
        ],
    )


def report(record: Record[Result]) -> Report:
    """The page of one experiment."""
    shown = section(record)
    return Report(
        title=f"tensorwire {record.command}",
        facts=facts(record),
        sections=[shown, *record.kind.details(record)],
        headlines=[shown.headline] if shown.headline else [],
    )


def facts(record: Record[Any]) -> list[str]:
    """The versions, the machine and the time of the measurement."""
    host = record.host
    return [
        f"tensorwire {record.version}",
        *([f"TensorFlow {record.tensorflow}"] if record.tensorflow else []),
        f"{host.cpu}, {host.cores} cores",
        f"Linux {host.kernel}",
        *lab_notes(record.lab),
        *([record.time.replace("T", " ").replace("Z", " UTC")] if record.time else []),
    ]


def times(ratio: Ratio) -> str:
    """ "3.26 times (3.10 to 3.41)"."""
    return f"{ratio.value:.2f} times{in_brackets(ratio)}"


def in_brackets(ratio: Ratio) -> str:
    """ " (3.10 to 3.41)", or "" if there was only one round."""
    return "" if ratio.interval is None else f" ({interval(ratio)})"


def interval(ratio: Ratio) -> str:
    """ "3.10 to 3.41", or "-" if there was only one round."""
    if ratio.interval is None:
        return "-"
    low, high = ratio.interval
    return f"{low:.2f} to {high:.2f}"


def ratio_table(ratios: Mapping[str, Ratio]) -> list[Table]:
    """A table with one row per comparison; empty without comparisons."""
    if not ratios:
        return []
    rows = [[name, f"{ratio.value:.2f}", interval(ratio)] for name, ratio in ratios.items()]
    columns = ["above 1: the first is faster", "ratio of medians", "95 % interval"]
    return [Table("How many times as fast", columns, [rows])]


def doubts(ratios: Mapping[str, Ratio], more: str) -> list[str]:
    """A warning for each uncertain ratio; `more` names the options that would help.

    Of many ratios, as `bench all` has, there is one warning.
    """
    if len(ratios) > _MANY:
        names = [name for name, ratio in ratios.items() if doubt(ratio)]
        again = "measure again while the machine does nothing else, and not with --quick"
        unsure = f"the rounds do not support {len(names)} of {len(ratios)} ratios"
        return [f"{unsure}: {', '.join(names)}; {again}"] if names else []
    found = [
        f"{name}: {reason}; more {more} give a more certain figure"
        for name, ratio in ratios.items()
        if (reason := doubt(ratio))
    ]
    if unknown := [name for name, ratio in ratios.items() if ratio.interval is None]:
        found.append(
            f"no confidence interval for {', '.join(unknown)}: this requires several rounds"
        )
    return found


def doubt(ratio: Ratio) -> str:
    """Why a ratio is uncertain; empty if it is not, or if there is no interval."""
    if ratio.interval is None:
        return ""
    low, high = ratio.interval
    if low < 1.0 < high:
        return f"the rounds do not show which is faster: the ratio may be from {interval(ratio)}"
    if max(ratio.value - low, high - ratio.value) > _FAR * ratio.value:
        return f"the rounds disagree: the ratio may be from {interval(ratio)}"
    return ""


def transport_of(tasks: Iterable[Mapping[str, Any]]) -> str:
    """The transport of a variant's tensors, from the plug-in's counters of its tasks."""
    counters = list(tasks)
    socket_bytes = sum(each.get("tx_bytes", 0) for each in counters)
    memory_bytes = sum(each.get("lent_bytes", 0) for each in counters)
    share = memory_bytes / (socket_bytes + memory_bytes) if memory_bytes else 0.0
    if share < 1.0 - _ALL:
        return "TCP"
    if share > _ALL:
        return "shared memory"
    return f"shared memory ({100 * share:.0f} % of the bytes) and TCP"


def noise_notes(noise: Noise | None) -> list[str]:
    """The machine's noise, as one line."""
    if noise is None:
        return []
    scattered = ", ".join(f"{name} {share:.0%}" for name, share in noise.scatter.items())
    return [
        f"load average {noise.load_start:.1f} before, {noise.load_end:.1f} after; "
        f"{noise.steal:.1%} of the CPU time stolen by the hypervisor"
        + (f"; rounds scatter by {scattered}" if scattered else "")
    ]


def noise_warnings(noise: Noise | None, host: Machine) -> list[str]:
    """Reasons why this machine was not suitable for measuring."""
    warnings = []
    if noise is not None and noise.load_start > _BUSY_LOAD * host.cores:
        warnings.append(
            f"the machine was busy before: load average {noise.load_start:.1f} on "
            f"{host.cores} cores"
        )
    if noise is not None and noise.steal > _MUCH_STEAL:
        warnings.append(f"the hypervisor gave {noise.steal:.0%} of the CPU time to other machines")
    return warnings
