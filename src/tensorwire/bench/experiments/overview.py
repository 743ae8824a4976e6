"""All layers on one page: the share of the link's rate that each keeps, and all results."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from tensorwire.bench.experiments import all_layers
from tensorwire.bench.experiments.all_layers import INTERRUPTED, AllLayersPlan, LayerResult, Suite
from tensorwire.bench.experiments.rpc import RpcResult, rpc_lines
from tensorwire.bench.experiments.serve import ServeResult
from tensorwire.bench.experiments.steps import StepsResult
from tensorwire.bench.experiments.train import TrainResult, steps_bars, verdicts
from tensorwire.bench.experiments.transfer import TransferResult, transfer_lines
from tensorwire.bench.frame import comparison
from tensorwire.bench.frame.comparison import (
    doubt,
    latency_bars,
    noise_notes,
    noise_warnings,
    ratio_table,
    times,
)
from tensorwire.bench.frame.comparison_options import (
    check_transport,
    lab_option,
    protocols_option,
    transport_option,
)
from tensorwire.bench.frame.contenders import PROTOCOLS, Setting, parse_protocols, side_name
from tensorwire.bench.frame.host_pool import lab_notes, open_host_pool
from tensorwire.bench.frame.record import Ratio, Record, Result
from tensorwire.bench.lab import LabSettings
from tensorwire.cli.options import json_option, report_option
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.report import page, terminal
from tensorwire.report.progress import ProgressDisplay
from tensorwire.report.section import (
    Bar,
    Bars,
    Chart,
    Report,
    Section,
    Table,
    Waterfall,
    WaterfallStage,
)
from tensorwire.units import data_size, number

_NAMES = {
    "link": "Link",
    "memcpy": "memcpy",
    "iperf3": "iperf3",
    "tcp": "Raw TCP",
    "rpc": "RPC",
    "transfer": "Tensors",
    "train": "Training",
}


def report(suite: Suite) -> Report:
    """The page of `bench all`."""
    parts = [
        _failures(suite),
        _layers(suite),
        _sizes(suite),
        _latency(suite),
        _training(suite),
    ]
    details = [
        dataclasses.replace(comparison.section(record, follows_others=True), is_detail=True)
        for record in suite.records
    ]
    return Report(
        title="tensorwire bench all",
        facts=comparison.facts(suite.summary),
        sections=[*(part for part in parts if part is not None), *details],
        headlines=headlines(suite),
    )


def in_short(suite: Suite) -> Section:
    """The section for a terminal: the layers, the ratios, and the failures."""
    layers = _layers(suite) or Section("")
    failed = _failures(suite) or Section("")
    return dataclasses.replace(
        layers,
        headline=" ".join(headlines(suite)),
        tables=[*layers.tables, *ratio_table(suite.summary.ratios)],
        warnings=[*layers.warnings, *failed.warnings],
    )


def headlines(suite: Suite) -> list[str]:
    """The main results, in one or two sentences."""
    layers = suite.summary.results
    found = []
    moved = {r.protocol: r for r in layers if r.layer == "transfer"}
    if "grpc" in moved and "grpc++" in moved:
        ours, grpc = moved["grpc++"], moved["grpc"]
        size = data_size(ours.message_size or 0)
        ratio = suite.summary.ratios.get(
            f"grpc++/grpc {size} transfer", Ratio(ours.mb_per_s / grpc.mb_per_s)
        )
        found.append(
            f"grpc++ moves a tensor of {size} at {number(ours.mb_per_s)} MB/s, {times(ratio)} as "
            "fast as grpc."
        )
    return [*found, *_left_of_tcp(layers)]


def _left_of_tcp(layers: Sequence[LayerResult]) -> list[str]:
    """The share of raw TCP that each protocol reaches, layer by layer."""
    tcp = next((r.mb_per_s for r in layers if r.layer == "tcp"), None)
    if tcp is None:
        return []
    clauses = []
    for layer, name in (("rpc", "the RPC layer leaves"), ("transfer", "tensors get")):
        shares = [f"{r.mb_per_s / tcp:.0%} under {r.protocol}" for r in layers if r.layer == layer]
        if shares:
            clauses.append(f"{name} {' and '.join(shares)}")
    if not clauses:
        return []
    return [f"Of raw TCP's {number(tcp)} MB/s {', '.join(clauses)}."]


def _layers(suite: Suite) -> Section | None:
    layers = suite.summary.results
    if not layers:
        return None
    stages = [
        WaterfallStage(
            _stage_name(r),
            r.mb_per_s,
            r.protocol or "raw",
            None if not r.of_layer_below else r.mb_per_s / r.of_layer_below,
        )
        for r in layers
    ]
    rows = [
        [
            _NAMES[r.layer],
            r.protocol or "-",
            number(r.mb_per_s),
            "-" if r.of_layer_below is None else f"{r.of_layer_below:.0%}",
        ]
        for r in layers
    ]
    table = Table(
        "What is left of the link at each layer (MB = 10^6 bytes)",
        ["layer", "protocol", "MB/s", "of the layer below"],
        [rows],
        text_columns=2,
    )
    notes = [
        *suite.notes,
        "The protocols of one layer took turns. The layers ran one after the other, so other load "
        "on the machine may explain a part of the change from one layer to the next.",
    ]
    if any(r.layer == "train" for r in layers):
        notes.append(
            "Training: the traffic of the tasks during training. This is what the model needs at "
            "the reached speed, not what the layer below could carry."
        )
    return Section(
        "From the link to training",
        charts=[
            Waterfall(
                "MB a second at each layer, and the change from the layer below",
                "MB/s",
                stages,
                "MB = 10^6 bytes. Pale: what the layer below carries.",
            )
        ],
        tables=[table],
        notes=[*notes, *lab_notes(suite.summary.lab), *noise_notes(suite.summary.noise)],
        warnings=[
            *noise_warnings(suite.summary.noise, suite.summary.host),
            *_doubtful(suite),
        ],
    )


def _doubtful(suite: Suite) -> list[str]:
    ratios = suite.summary.ratios
    names = [name for name, ratio in ratios.items() if doubt(ratio)]
    if not names:
        return []
    return [
        f"the rounds do not support {len(names)} of {len(ratios)} ratios: {', '.join(names)}; "
        "measure again while the machine does nothing else, and not with --quick"
    ]


def _stage_name(result: LayerResult) -> str:
    name = _NAMES[result.layer]
    return name if result.protocol is None else f"{name}, {result.protocol}"


def _failures(suite: Suite) -> Section | None:
    if not suite.failures:
        return None
    return Section(
        "Not measured",
        # The further lines are the end of a log; the JSON contains them.
        warnings=[f"{layer}: {why.splitlines()[0]}" for layer, why in suite.failures.items()],
    )


def _sizes(suite: Suite) -> Section | None:
    charts: list[Chart] = [
        rpc_lines(record)
        for record in _of_type(suite, RpcResult)
        if len({r.message_size for r in record.results}) > 1
    ]
    charts += [
        transfer_lines(record)
        for record in _of_type(suite, TransferResult)
        if len({r.data_mb for r in record.results}) > 1
    ]
    return Section("Throughput over message size", charts=charts) if charts else None


def _latency(suite: Suite) -> Section | None:
    charts: list[Chart] = []
    for record in _of_type(suite, RpcResult):
        first = record.results[0]
        if first.concurrency == 1:
            title = f"RPC without TensorFlow, {first.message_size} bytes, one at a time"
            latencies = [(r.protocol, r.latency_us) for r in record.results if r.latency_us]
            charts.append(latency_bars(title, latencies))
    for record in _of_type(suite, ServeResult):
        first = record.results[0]
        title = f"One ps, {first.clients} clients, {first.message_size} bytes: a request"
        charts.append(latency_bars(title, [(r.protocol, r.latency_us) for r in record.results]))
    for record in _of_type(suite, StepsResult):
        bars = [
            Bar(
                f"{r.case}, {name}",
                r.step_ms.p50,
                name,
                r.step_ms.p50,
                r.step_ms.p90,
            )
            for r in record.results
            for name in [side_name(r.protocol, r.tensor_fuse)]
        ]
        caption = "Median, and a line to the 90th percentile; shorter is better."
        charts.append(Bars("A step of TensorFlow that moves little", "ms", bars, caption))
    return Section("Latency", charts=charts) if charts else None


def _training(suite: Suite) -> Section | None:
    charts = [steps_bars(record.results) for record in _of_type(suite, TrainResult)]
    headlines = [
        " ".join(verdicts(record.results, record.ratios)) for record in _of_type(suite, TrainResult)
    ]
    return Section("Steps a second", " ".join(headlines), charts) if charts else None


def _of_type(suite: Suite, result_type: type[Result]) -> Iterator[Record[Any]]:
    for record in suite.records:
        if record.results and isinstance(record.results[0], result_type):
            yield record


@click.command(
    "all",
    epilog="""\b
Examples:
  tensorwire bench all --report page.html
  tensorwire bench all --quick --json all.json
  tensorwire bench all --lab hosts=2,rate=10gbit,delay=50us --report page.html""",
)
@click.option("--quick", is_flag=True, help="Fewer sizes and rounds: two minutes instead of ten.")
@protocols_option
@transport_option("tcp")
@lab_option
@json_option
@report_option
@click.pass_context
def command(
    context: click.Context,
    *,
    quick: bool,
    protocols: str | None,
    transport: str,
    lab: LabSettings | None,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Measure every layer, from the link to training, and show what each layer loses.

    If a layer fails, its name is printed, the other layers still run, and the exit status is 1.
    After Ctrl-C, the files contain what was measured before.
    """
    named = None if protocols is None else parse_protocols(protocols)
    check_transport(transport, named, "tcp")
    if lab is not None and transport != "tcp":
        raise UsageError(f"--transport {transport}: the hosts of a lab share no memory")
    plan = AllLayersPlan(
        quick=quick,
        protocols=named or PROTOCOLS,
        setting=Setting(transport=transport),
    )
    notes: list[str] = []
    parts = all_layers.layers(plan, notes)
    blocks = sum(part.blocks for part in parts)
    with ProgressDisplay("bench all", blocks) as progress, open_host_pool(lab) as chosen:
        suite = all_layers.run(parts, notes, progress, chosen)
    is_interrupted = INTERRUPTED in suite.failures.values()
    if is_interrupted and not suite.records:
        raise _interrupted("nothing was written")
    if json_path is not None:
        suite.write(json_path)
    if report_path is not None:
        page.write(report_path, report(suite))
    terminal.show([in_short(suite)])
    if is_interrupted:
        files = [str(path) for path in (json_path, report_path) if path is not None]
        where = " and ".join(files) or "the table"
        raise _interrupted(f"what was measured before is in {where}")
    context.exit(1 if suite.failures else 0)


def _interrupted(what_became: str) -> TensorwireError:
    return TensorwireError(f"interrupted; {what_became}", exit_code=128 + signal.SIGINT)
