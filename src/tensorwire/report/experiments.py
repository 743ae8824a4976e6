"""Each experiment's record as a section: one description for the terminal and the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tensorwire.bench.record import (
    LatencyUs,
    LayoutResult,
    MemoryResult,
    Ratio,
    Record,
    Result,
    RpcResult,
    ServeResult,
    StepMs,
    StepsResult,
    StrategyResult,
    TcpResult,
    TrainResult,
    TransferResult,
)
from tensorwire.bench.sides import side_name
from tensorwire.report import layouts, training
from tensorwire.report.blocks import Bar, Bars, Chart, Line, Lines, Section, Table
from tensorwire.report.comparison import doubts, noise_notes, noise_warnings, ratio_table
from tensorwire.report.places import lab_notes
from tensorwire.units import data_size, number

_Row = TypeVar("_Row")
_MOST_OF_IPERF3_BYTES = 1 << 20


def section(record: Record[Result], *, follows_others: bool = False) -> Section:
    """The record as people read it.

    Args:
        record: of any experiment.
        follows_others: the load before it was that of our own experiments.

    Raises:
        ValueError: nothing was measured.
    """
    if not record.results:
        raise ValueError("a record without a result")
    shown = _VIEWS[type(record.results[0])](record)
    return dataclasses.replace(
        shown,
        tables=[*shown.tables, *ratio_table(record.ratios)],
        notes=[*shown.notes, *lab_notes(record.lab), *noise_notes(record.noise)],
        warnings=[
            *([] if follows_others else noise_warnings(record.noise, record.host)),
            *doubts(record.ratios, _WHAT_GIVES_MORE.get(record.command, "--rounds and --iters")),
        ],
    )


def details(record: Record[Any]) -> list[Section]:
    """What a page has below the section."""
    return layouts.details(record) if isinstance(record.results[0], LayoutResult) else []


_WHAT_GIVES_MORE = {
    "bench tcp": "--rounds",
    "bench rpc": "--rounds",
    "benchmarks/peers": "--rounds",
    "bench train": "--steps",
    "demo": "--steps",
    "bench serve": "--requests",
    "k8s compare": "--rounds",
}


def _transfer(record: Record[TransferResult]) -> Section:
    sizes = dict.fromkeys(result.data_mb for result in record.results)
    if len(sizes) > 1:
        return _transfer_over_sizes(record)
    size = data_size(record.results[0].data_mb * 1e6)
    sides = [(side_name(r.protocol, r.tensor_fuse), r) for r in record.results]
    raw = [(f"{name} (raw)", rate) for name, rate in record.ceilings.items()]
    table = Table(
        f"Tensor transfer, {size}, worker to ps (MB = 10^6 bytes)",
        ["protocol", *_TRANSFER_COLUMNS],
        [
            [[name, *_transfer_cells(r)] for name, r in sides],
            [[name, number(rate), "", "", "", ""] for name, rate in raw],
        ],
    )
    bars = [Bar(name, r.mb_per_s, name) for name, r in sides]
    bars += [Bar(name, rate, "raw") for name, rate in raw]
    charts = [
        Bars("Rate, MB = 10^6 bytes", "MB/s", bars),
        _step_bars("Time of a step", [(name, r.step_ms) for name, r in sides]),
    ]
    return Section(
        f"Tensor transfer, {size}",
        _compared(record.ratios, f"moves {size} from worker to ps"),
        charts,
        [table],
    )


def _transfer_over_sizes(record: Record[TransferResult]) -> Section:
    of_size: dict[str, list[TransferResult]] = {}
    for result in record.results:
        of_size.setdefault(data_size(result.data_mb * 1e6), []).append(result)
    table = Table(
        "Tensor transfer, worker to ps (MB = 10^6 bytes)",
        ["size", "protocol", *_TRANSFER_COLUMNS],
        [
            [[size, side_name(r.protocol, r.tensor_fuse), *_transfer_cells(r)] for r in results]
            for size, results in of_size.items()
        ],
        text_columns=2,
    )
    return Section("Tensor transfer over sizes", "", [transfer_lines(record)], [table])


def transfer_lines(record: Record[TransferResult]) -> Lines:
    """The rate of each side over the tensor's size."""
    points: dict[str, list[tuple[float, float]]] = {}
    for r in record.results:
        side = side_name(r.protocol, r.tensor_fuse)
        points.setdefault(side, []).append((r.data_mb * 1e6, r.mb_per_s))
    lines = [Line(side, of_side) for side, of_side in points.items()]
    return Lines(
        "A tensor from worker to ps, through TensorFlow",
        "MB/s",
        lines,
        "MB/s, MB = 10^6 bytes; both axes are logarithmic.",
    )


_TRANSFER_COLUMNS = ["MB/s", "step ms p50", "p90", "min", "CPU s/GB"]


def _transfer_cells(result: TransferResult) -> list[str]:
    cpu = "-" if result.cpu_s_per_gb is None else number(result.cpu_s_per_gb)
    return [number(result.mb_per_s), *_step_cells(result.step_ms), cpu]


def _steps(record: Record[StepsResult]) -> Section:
    table = Table(
        "Time of a step that assigns small tensors, worker to ps",
        ["case", "protocol", "tensors", "step ms p50", "p90", "min"],
        [
            [
                [
                    case,
                    side_name(r.protocol, r.tensor_fuse),
                    str(r.tensors),
                    *_step_cells(r.step_ms),
                ]
                for r in rows
            ]
            for case, rows in _by_case(record.results)
        ],
        text_columns=2,
    )
    charts = [
        _step_bars(
            f"Time of a step, {case}",
            [(side_name(r.protocol, r.tensor_fuse), r.step_ms) for r in rows],
        )
        for case, rows in _by_case(record.results)
    ]
    return Section("Small steps", _compared(record.ratios, "takes small steps"), charts, [table])


def _strategy(record: Record[StrategyResult]) -> Section:
    table = Table(
        "Functions that a ParameterServerStrategy schedules on one worker (MB = 10^6 bytes)",
        ["case", "protocol", "MB read", "functions/s", "ms p50", "p90", "min"],
        [
            [
                [
                    case,
                    r.protocol,
                    number(r.data_mb),
                    number(r.functions_per_s),
                    *_step_cells(r.step_ms),
                ]
                for r in rows
            ]
            for case, rows in _by_case(record.results)
        ],
        text_columns=2,
    )
    charts = [
        Bars(
            f"Functions a second, {case}",
            "/s",
            [Bar(r.protocol, r.functions_per_s, r.protocol) for r in rows],
        )
        for case, rows in _by_case(record.results)
    ]
    headline = _compared(record.ratios, "runs a coordinator's functions")
    return Section("ParameterServerStrategy", headline, charts, [table])


def _serve(record: Record[ServeResult]) -> Section:
    first = record.results[0]
    in_flight = f", {first.in_flight} requests each" if first.in_flight > 1 else ""
    table = Table(
        f"One ps, {first.clients} clients{in_flight}, {first.payload} payload of "
        f"{first.message_size} bytes",
        ["protocol", "requests/s", "MB/s", "latency us p50", "p99", "ps CPU us/request", "threads"],
        [
            [
                [
                    r.protocol,
                    number(r.requests_per_s),
                    number(r.mb_per_s),
                    number(r.latency_us.p50),
                    number(r.latency_us.p99),
                    number(r.ps_cpu_us_per_request),
                    str(r.ps_threads),
                ]
                for r in record.results
            ]
        ],
    )
    charts = [
        Bars(
            "Requests a second",
            "/s",
            [Bar(r.protocol, r.requests_per_s, r.protocol) for r in record.results],
        ),
        latency_bars("Time of a request", [(r.protocol, r.latency_us) for r in record.results]),
        Bars(
            "CPU time of the ps for a request",
            "us",
            [Bar(r.protocol, r.ps_cpu_us_per_request, r.protocol) for r in record.results],
        ),
    ]
    headline = _compared(record.ratios, f"serves {first.clients} clients")
    return Section("One ps, many clients", headline, charts, [table])


def _tcp(record: Record[TcpResult]) -> Section:
    message_size = record.results[0].message_size
    by_streams: dict[int, list[TcpResult]] = {}
    for result in record.results:
        by_streams.setdefault(result.streams, []).append(result)
    names = {"tcp": "tcp (ours)"}
    table = Table(
        f"Raw TCP, {message_size} bytes at a time (MB = 10^6 bytes)",
        ["program", "streams", "MB/s"],
        [
            [
                [names.get(r.implementation, r.implementation), str(r.streams), number(r.mb_per_s)]
                for r in rows
            ]
            for rows in by_streams.values()
        ],
    )
    charts = [
        Bars(
            "Rate, MB = 10^6 bytes",
            "MB/s",
            [
                Bar(f"{r.implementation}, {r.streams}", r.mb_per_s, r.implementation)
                for rows in by_streams.values()
                for r in rows
            ],
            "The number after a name is that of its streams.",
        )
    ]
    notes = []
    if all(r.implementation == "tcp" for r in record.results):
        notes.append("iperf3 took no part: it was not installed (apt-get install iperf3)")
    elif message_size > _MOST_OF_IPERF3_BYTES:
        notes.append("iperf3 sent 1 MiB at a time, the most that it does")
    return Section("Raw TCP", charts=charts, tables=[table], notes=notes)


def _rpc(record: Record[RpcResult]) -> Section:
    first = record.results[0]
    by_size: dict[int, list[RpcResult]] = {}
    for result in record.results:
        by_size.setdefault(result.message_size, []).append(result)
    table = Table(
        f"Raw RPC: so many bytes there, {first.response_size} back (MB = 10^6 bytes)",
        [
            "protocol",
            "by",
            "bytes",
            "in flight",
            "channels",
            "threads",
            "requests/s",
            "MB/s",
            "us p50",
            "p99",
            "CPU us",
        ],
        [[_rpc_row(r) for r in rows] for rows in by_size.values()],
        text_columns=2,
    )
    charts: list[Chart] = []
    for size, rows in by_size.items():
        what = f"requests of {data_size(size)}"
        charts.append(
            Bars(
                f"A second, {what}",
                "/s",
                [Bar(r.protocol, r.requests_per_s, r.protocol) for r in rows],
            )
        )
        charts.append(
            latency_bars(
                f"Time of one of the {what}",
                [(r.protocol, r.latency_us) for r in rows if r.latency_us is not None],
            )
        )
    if len(by_size) > 1:
        charts = [rpc_lines(record)]
    headline = ""
    if len(by_size) == 1:
        headline = _compared(record.ratios, f"moves requests of {data_size(first.message_size)}")
    if len(by_size) > 1:
        title = "Raw RPC over sizes"
    else:
        title = f"Raw RPC, {data_size(first.message_size)}, {first.concurrency} in flight"
    return Section(title, headline, charts, [table])


def rpc_lines(record: Record[RpcResult]) -> Lines:
    """The rate of each protocol over the request's size."""
    points: dict[str, list[tuple[float, float]]] = {}
    for r in record.results:
        points.setdefault(r.protocol, []).append((r.message_size, r.mb_per_s))
    by = dict.fromkeys(f"{r.protocol} by {r.implementation}" for r in record.results)
    return Lines(
        "A request, without TensorFlow",
        "MB/s",
        [Line(protocol, of_protocol) for protocol, of_protocol in points.items()],
        f"MB/s, MB = 10^6 bytes; both axes are logarithmic; {', '.join(by)}.",
    )


def _rpc_row(r: RpcResult) -> list[str]:
    latency = ["-", "-"]
    if r.latency_us is not None:
        latency = [number(r.latency_us.p50), number(r.latency_us.p99)]
    return [
        r.protocol,
        r.implementation,
        str(r.message_size),
        str(r.concurrency) if r.concurrency else "-",
        str(r.channels),
        str(r.server_threads),
        number(r.requests_per_s),
        number(r.mb_per_s),
        *latency,
        "-" if r.cpu_us_per_request is None else number(r.cpu_us_per_request),
    ]


def _memory(record: Record[MemoryResult]) -> Section:
    table = Table(
        f"Resident memory over {record.results[0].iters} steps, MB (of 10^6 bytes)",
        ["task", "protocol", "tensor", "after 100 steps", "highest", "at the end", "pool's cap"],
        [
            [
                [
                    r.task,
                    r.protocol,
                    *(
                        f"{mb:.0f}"
                        for mb in (r.data_mb, r.early_mb, r.highest_mb, r.final_mb, r.pool_cap_mb)
                    ),
                ]
                for r in record.results
            ]
        ],
        text_columns=2,
    )
    return Section("Memory", tables=[table])


# The keys are the types of the records that their values take; the type system cannot say so.
_VIEWS: Mapping[type[Result], Callable[[Any], Section]] = {
    TcpResult: _tcp,
    RpcResult: _rpc,
    TransferResult: _transfer,
    StepsResult: _steps,
    StrategyResult: _strategy,
    ServeResult: _serve,
    MemoryResult: _memory,
    TrainResult: training.section,
    LayoutResult: layouts.section,
}


def latency_bars(title: str, latencies: Iterable[tuple[str, LatencyUs]]) -> Bars:
    """Medians, each with a line to its 99th percentile."""
    return Bars(
        title,
        "us",
        [
            Bar(name, each.p50, name, each.p50, each.p99, f", p99 {number(each.p99)}")
            for name, each in latencies
        ],
        "Median, and a line to the 99th percentile; microseconds, shorter is better.",
    )


def _step_cells(step: StepMs) -> list[str]:
    return [number(step.p50), number(step.p90), number(step.min)]


def _step_bars(title: str, steps: Iterable[tuple[str, StepMs]]) -> Bars:
    return Bars(
        title,
        "ms",
        [Bar(name, step.p50, name, low=step.min, high=step.p90) for name, step in steps],
        "Median, and a line from the fastest to the 90th percentile; shorter is better.",
    )


def _by_case(results: Sequence[_Row]) -> list[tuple[str, list[_Row]]]:
    """The results of each case, in the order in which the cases first come."""
    cases: dict[str, list[_Row]] = {}
    for result in results:
        cases.setdefault(result.case, []).append(result)  # type: ignore[attr-defined]
    return list(cases.items())


def _compared(ratios: Mapping[str, Ratio], does: str) -> str:
    """ "grpc++ takes small steps 2.80 (tiny) and 5.24 (many) times as fast as grpc."."""
    of_side: dict[str, list[str]] = {}
    for name, ratio in ratios.items():
        first, _, second = name.partition("/")
        against, _, case = second.partition(" ")
        if against == "grpc" and not case.startswith("fused"):
            text = f"{ratio.value:.2f}" + (f" ({case})" if case else "")
            of_side.setdefault(first, []).append(text)
    clauses = [f"{first} {' and '.join(texts)} times" for first, texts in of_side.items()]
    if not clauses:
        return ""
    first = next(iter(of_side))
    clauses[0] = clauses[0].replace(first, f"{first} {does}", 1) + " as fast as grpc"
    return ", ".join(clauses) + "."
