"""The output of `tensorwire top` and `tensorwire nic`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tensorwire.metrics.nic import NicRate
from tensorwire.metrics.rates import Imbalance, JobRates, QueueRates, TableRates, TaskRates

MARK = "▲"
_FIRST_TO_GO = ("pid", "wire", "reactor", "requests", "memory", "waiting")
"""Columns in the order in which a narrow terminal leaves them out."""
_UNEVEN = "bold yellow"
_SHOWN_TABLES = 8


def screen(rates: JobRates, every_s: float, columns: int) -> RenderableType:
    """Tasks as a table; below it sentences about imbalances and about tasks that did not answer.

    Each cluster has its own table. `columns` is the width of the terminal in characters.
    """
    clusters = sorted({task.cluster for task in rates.tasks})
    return Group(
        _title(rates, every_s, columns),
        *(part for cluster in clusters for part in _of_cluster(rates, cluster, columns)),
        *(part for queue in rates.queues for part in _queue(queue)),
        *_growing(rates.tables),
        *_missing(rates),
    )


def waiting_screen(message: str) -> RenderableType:
    """The screen while no task answers."""
    return Text(message, style="dim")


def _title(rates: JobRates, every_s: float, columns: int) -> Text:
    hosts = len({task.host for task in rates.tasks})
    tasks = len(rates.tasks)
    where = f"{tasks} task{'s' * (tasks != 1)} on {hosts} host{'s' * (hosts != 1)}"
    what = f"{where}, every {every_s:g} s"
    title = Text("tensorwire top", style="bold")
    one_line = f"   {what}   Ctrl-C ends"
    return title.append(
        one_line if len(title) + len(one_line) <= columns else f"\n{what}", style="dim"
    )


def _of_cluster(rates: JobRates, cluster: str, columns: int) -> Iterator[RenderableType]:
    if cluster:
        yield Text()
        yield Text(f"cluster of the ps at {cluster}", style="bold")
    uneven = [found for found in rates.imbalances if found.cluster == cluster]
    yield from _table([task for task in rates.tasks if task.cluster == cluster], uneven, columns)
    if uneven:
        yield Text()
    for found in uneven:
        yield Text(f"{MARK} {_sentence(found)}", style=_UNEVEN)


def _table(
    tasks: Sequence[TaskRates], imbalances: Sequence[Imbalance], columns: int
) -> Iterator[RenderableType]:
    """The table with as many columns as fit, and a line that names the others."""
    uneven = {(found.task, found.what) for found in imbalances}
    rows = [_row(task, uneven) for task in tasks]
    widths = {
        name: max(len(name), *(row[name].cell_len for row in rows)) for name in (rows or [{}])[0]
    }
    hidden = []
    for name in _FIRST_TO_GO:
        if sum(width + 1 for width in widths.values()) - 1 > columns:
            hidden.append(name)
            widths.pop(name, None)
    yield _columns(list(widths), ([row[name] for name in widths] for row in rows))
    if hidden:
        yield Text(f"not shown, terminal too narrow: {', '.join(hidden)}", style="dim")


def _row(task: TaskRates, uneven: Set[tuple[str, str]]) -> dict[str, Text]:
    """The cells by column, from left to right."""
    by_bytes = (task.task, "bytes") in uneven
    mostly_out = task.out_bytes_per_s >= task.in_bytes_per_s
    return {
        "task": Text(task.task),
        "pid": Text(str(task.pid)),
        "CPU": _cell(f"{task.cores:.0%}", (task.task, "CPU") in uneven),
        "memory": Text(_size(task.rss_bytes)),
        "in": _cell(f"{_size(task.in_bytes_per_s)}/s", by_bytes and not mostly_out),
        "out": _cell(f"{_size(task.out_bytes_per_s)}/s", by_bytes and mostly_out),
        "requests": Text(f"{task.requests_per_s:,.0f}/s"),
        "waiting": Text(f"{task.waiting:.0%}"),
        "wire": Text(f"{task.wire:.0%}" if task.waiting > 0 else "-"),
        "reactor": Text(f"{task.reactor:.0%}"),
    }


def _cell(text: str, marked: bool) -> Text:
    return Text(f"{MARK} {text}", style=_UNEVEN) if marked else Text(text)


def _growing(tables: Sequence[TableRates]) -> Iterator[RenderableType]:
    """The largest tables that grow."""
    if not tables:
        return
    yield Text()
    hidden = len(tables) - _SHOWN_TABLES
    more = f", {hidden} smaller ones are not shown" if hidden > 0 else ""
    yield Text(f"tables that grow: {_size(sum(each.bytes for each in tables))}{more}", style="bold")
    yield _columns(
        ["table", "task", "rows", "new rows", "size"],
        (
            [
                *(each.name, each.task, f"{each.rows:,}"),
                *(f"{each.new_rows_per_s:,.0f}/s", _size(each.bytes)),
            ]
            for each in tables[:_SHOWN_TABLES]
        ),
    )


def _queue(queue: QueueRates) -> Iterator[RenderableType]:
    of_all = f" of {queue.items:,}" if queue.items else ""
    yield Text()
    yield Text(
        f"{queue.name}: {queue.done:,}{of_all} items done, {queue.in_work} in work"
        + (f", {queue.returned} given back" if queue.returned else ""),
        style="bold",
    )
    yield _columns(
        ["worker", "in work", "done", "items"],
        (
            [each.worker, f"{each.in_work}", f"{each.done:,}", f"{each.done_per_s:.2f}/s"]
            for each in queue.workers
        ),
    )


def _columns(names: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table whose first column names the row."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _missing(rates: JobRates) -> list[Text]:
    notes = [
        Text(f"no metrics from {address}: {reason}", style="red")
        for address, reason in sorted(rates.unreachable.items())
    ]
    return notes if rates.imbalances or not notes else [Text(), *notes]


def _sentence(found: Imbalance) -> str:
    verb = "moves" if found.what == "bytes" else "uses"
    text = (
        f"{found.task} {verb} {found.share:.0%} of the {found.what} of its job,"
        f" {found.over_mean:.1f} times the mean"
    )
    if found.hot is not None:
        text += f"; {found.hot.share:.0%} of it is {found.hot.name}"
    return text


def _size(count: float) -> str:
    """Bytes in units of 10^3: "12.3 MB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1e3
    return f"{count:.1f} TB"


_NUMBER = 12
_COLUMN = 2 * _NUMBER + 8


def header(rates: Sequence[NicRate]) -> list[str]:
    """Two lines: each interface with its nominal speed, and the titles of its columns."""
    speeds = (rate.mbit_per_s and f" ({rate.mbit_per_s / 1e3:g} Gbit/s)" for rate in rates)
    titles = (f"{rate.interface}{speed or ''}" for rate, speed in zip(rates, speeds, strict=True))
    units = "".join(f"{'KB/s in':>{_NUMBER}}{'KB/s out':>{_NUMBER}}{'of link':>8}" for _ in rates)
    return ["".join(f"{title:^{_COLUMN}}" for title in titles).rstrip(), units]


def line(rates: Sequence[NicRate]) -> str:
    """The rates of one interval as a line, with columns for each interface."""
    shares = ("-" if rate.share is None else f"{rate.share:.1%}" for rate in rates)
    return "".join(
        f"{rate.in_kb_per_s:>{_NUMBER},.1f}{rate.out_kb_per_s:>{_NUMBER},.1f}{share:>8}"
        for rate, share in zip(rates, shares, strict=True)
    )
