"""`bench all`: every layer from the link to training, one after the other, in one call."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import click

from tensorwire.bench.experiments import rpc, serve, steps, strategy, tcp, train, transfer
from tensorwire.bench.experiments.rpc import RpcResult
from tensorwire.bench.experiments.tcp import TcpResult
from tensorwire.bench.experiments.train import TrainResult
from tensorwire.bench.experiments.transfer import TransferResult
from tensorwire.bench.frame import columns, showing
from tensorwire.bench.frame.columns import Column
from tensorwire.bench.frame.experiment import Experiment
from tensorwire.bench.frame.hosts import THIS_MACHINE, HostPool, link_mb_per_s, open_host_pool
from tensorwire.bench.frame.options import SharedOptions, check_transport
from tensorwire.bench.frame.record import Metric, Ratio, Record, Result, words
from tensorwire.bench.frame.showing import times
from tensorwire.bench.frame.statistics import NoiseWatch
from tensorwire.bench.frame.tasks import Watcher
from tensorwire.bench.frame.variants import PROTOCOLS, parse_protocols
from tensorwire.bench.lab import LabSettings
from tensorwire.cli.click_extensions import options_of, takes
from tensorwire.cli.options import Output
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.report.progress import ProgressDisplay
from tensorwire.report.section import Section, Waterfall, WaterfallStage
from tensorwire.units import data_size, number

COMMAND = "bench all"
_RPC = "rpc"
INTERRUPTED = "interrupted"
Layers = dict[str, Experiment[Any, Any]]
"""The experiments of a call, by their layers."""

_NAMES = {
    "link": "Link",
    "memcpy": "memcpy",
    "iperf3": "iperf3",
    "tcp": "Raw TCP",
    "rpc": "RPC",
    "transfer": "Tensors",
    "train": "Training",
}


@dataclass(frozen=True)
class LayerResult(Result):
    """`bench all`: the share of the link's rate that is left at one layer."""

    commands = ("bench all",)
    figure = "mb_per_s"
    title = "What is left of the link at each layer (MB = 10^6 bytes)"
    subject = "layer"
    of = words("Layer {0.layer}")

    layer: str
    """"link" or, on one machine, "memcpy"; "iperf3", "tcp", "rpc", "transfer", "train"."""
    protocol: Annotated[str | None, Column("protocol")]
    """The protocol; None for a layer without one (raw TCP)."""
    message_size: int | None
    """Bytes of one message; None if the layer has no single size."""
    mb_per_s: Annotated[float, Column("MB/s", "MB/s")]
    of_layer_below: Annotated[float | None, Column("of the layer below", show=".0%")]
    """Rate divided by that of the layer below, under the same protocol; None for the lowest layer.

    iperf3 is next to tcp, directly above the link.
    """

    @property
    def name(self) -> str:
        return _NAMES[self.layer]

    @property
    def metric(self) -> Metric:
        return dataclasses.replace(super().metric, variant=self.protocol or "raw")

    @classmethod
    def section(cls, record: Record[Any]) -> Section:
        results = record.results
        stages = [
            WaterfallStage(
                r.name if r.protocol is None else f"{r.name}, {r.protocol}",
                r.mb_per_s,
                r.protocol or "raw",
                None if not r.of_layer_below else r.mb_per_s / r.of_layer_below,
            )
            for r in results
        ]
        notes = [
            "The protocols of one layer took turns. The layers ran one after the other, so other "
            "load on the machine may explain a part of the change from one layer to the next."
        ]
        if any(r.layer == "train" for r in results):
            notes.append(
                "Training: the traffic of the tasks during training. This is what the model needs "
                "at the reached speed, not what the layer below could carry."
            )
        chart = Waterfall(
            "MB a second at each layer, and the change from the layer below",
            "MB/s",
            stages,
            "MB = 10^6 bytes. Pale: what the layer below carries.",
        )
        return Section(
            "From the link to training",
            " ".join([*_tensors(record), *_left_of_tcp(results)]),
            charts=[chart] if results else [],
            tables=[columns.table(LayerResult.title, results, {})] if results else [],
            notes=[*record.notes, *notes],
            # The further lines of a failure are the end of a log; the JSON contains them.
            warnings=[f"{layer}: {why.splitlines()[0]}" for layer, why in record.failures.items()],
        )

    @staticmethod
    def details(record: Record[Any]) -> Sequence[Section]:
        return [showing.section(each, follows_others=True) for each in record.records]


def layers(quick: bool, shared: Mapping[str, Any], notes: list[str]) -> Layers:
    """The experiments to run, in order; adds a note for what is left out to `notes`.

    `shared`: the protocols and the transport. The default is TCP, as between hosts: a layer can be
    compared with the layer below only if both use the same path.
    """
    protocols = {"protocols": shared["protocols"]}
    transfers = _sizes(quick, shared, notes)
    few, more, most = (3, 4, 4) if quick else (5, 10, 20)
    sizes = {
        f"{_RPC} {data_size(size)}": rpc.Rpc(
            message_size=size,
            concurrency=1 if size > transfer.BASELINE_BYTES else None,
            rounds=few,
            **protocols,
        )
        for size in transfers.sizes_bytes
    }
    return {
        "tcp": tcp.Tcp(rounds=2 if quick else 5),
        **sizes,
        "rpc, one at a time": rpc.Rpc(concurrency=1, rounds=3 if quick else 10, **protocols),
        "transfer": transfers,
        "steps": steps.Steps(iters=120 if quick else 600, rounds=most, **shared),
        "serve": serve.Serve(requests=20_000 if quick else 200_000, rounds=more, **shared),
        "strategy": strategy.Strategy(iters=40 if quick else None, rounds=more, **shared),
        "train": train.Train(steps=300 if quick else 2000, rounds=4 if quick else 8, **shared),
    }


def _sizes(quick: bool, shared: Mapping[str, Any], notes: list[str]) -> transfer.TransferOfSizes:
    chosen = (64, 10_000, 1_000_000, transfer.BASELINE_BYTES) if quick else transfer.SIZES_BYTES
    wanted = transfer.TransferOfSizes(sizes_bytes=chosen, rounds=3 if quick else 5, **shared)
    too_large = wanted.too_large()
    if not too_large:
        return wanted
    names = ", ".join(map(data_size, too_large))
    notes.append(f"tensors of {names} are left out: there is not enough free memory for them")
    fitting = tuple(size for size in chosen if size not in too_large)
    return dataclasses.replace(wanted, sizes_bytes=fitting)


class _LayerWatcher:
    """The watcher of one layer: adds the layer's name to activities, and counts advances."""

    def __init__(self, watcher: Watcher, name: str) -> None:
        self._watcher = watcher
        self._name = name
        self.advanced = 0

    def activity(self, text: str) -> None:
        self._watcher.activity(f"{self._name}: {text}")

    def advance(self, count: int = 1) -> None:
        self.advanced += count
        self._watcher.advance(count)


def run(
    plan: Layers,
    notes: Sequence[str],
    watcher: Watcher,
    hosts: HostPool = THIS_MACHINE,
) -> Record[LayerResult]:
    """Runs the layers; calls `watcher.advance` for the blocks of all layers.

    The record's ratios are those of all layers. A failed layer does not stop the others. Ctrl-C
    does: the record then has those that were measured before, and INTERRUPTED as the failure of the
    rest.
    """
    noise = NoiseWatch()
    measured: dict[str, Record[Any]] = {}
    failures: dict[str, str] = {}
    for index, (name, layer) in enumerate(plan.items()):
        part = _LayerWatcher(watcher, f"{index + 1} of {len(plan)}, {name}")
        try:
            measured[name] = layer.run(part, hosts)
        except TensorwireError as error:
            failures[name] = str(error)
        except KeyboardInterrupt:
            failures |= dict.fromkeys([*plan][index:], INTERRUPTED)
            break
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
        watcher.advance(layer.blocks - part.advanced)
    if sizes := [name for name in measured if name.startswith(f"{_RPC} ")]:
        merged = rpc.of_all_sizes([measured.pop(name) for name in sizes])
        measured = {_RPC: merged, **measured}
    records = [*measured.values()]
    return Record(
        command=COMMAND,
        tensorflow=next((r.tensorflow for r in records if r.tensorflow), None),
        results=what_is_left(records),
        ratios={
            f"{ratio_name} {name}": ratio
            for name, record in measured.items()
            for ratio_name, ratio in record.ratios.items()
        },
        noise=noise.seen({}),
        lab=hosts.document,
        records=records,
        failures=failures,
        notes=notes,
    )


def what_is_left(records: Sequence[Record[Result]]) -> list[LayerResult]:
    """The rate of each layer at one size and under each protocol, the lowest layer first."""
    found: list[LayerResult] = []
    below: dict[str | None, float] = {}

    def add(
        layer: str, mb_per_s: float, protocol: str | None = None, size: int | None = None
    ) -> None:
        under = below.get(protocol, below.get(None))
        of_below = mb_per_s / under if under else None
        found.append(LayerResult(layer, protocol, size, mb_per_s, of_below))
        if layer != "iperf3":
            below[protocol] = mb_per_s

    results = [result for record in records for result in record.results]
    for name, rate in _lowest(records, results).items():
        add(name, rate)
    sizes = [round(each.size_bytes) for each in results if isinstance(each, TransferResult)]
    fitting = [size for size in sizes if size <= transfer.BASELINE_BYTES]
    size = max(fitting, default=transfer.BASELINE_BYTES)
    for each in results:
        if isinstance(each, RpcResult) and each.message_size == size:
            add("rpc", each.mb_per_s, each.protocol, size)
    for each in results:
        if isinstance(each, TransferResult) and round(each.size_bytes) == size:
            add("transfer", each.mb_per_s, each.protocol, size)
    for each in results:
        if isinstance(each, TrainResult) and each.wire_mb_per_step is not None:
            add("train", each.wire_mb_per_step * each.steps_per_s, each.protocol)
    return found


def _lowest(records: Sequence[Record[Result]], results: Sequence[Result]) -> dict[str, float]:
    """MB/s of the layers below all protocols: the link, or memcpy if there is none; raw TCP."""
    rates: dict[str, float] = {}
    for record in records:
        rates |= record.baselines
        if (link := link_mb_per_s(record.lab)) is not None:
            rates["link"] = link
    # Several streams count if they are faster than one.
    for streams in (each for each in results if isinstance(each, TcpResult)):
        name = "tcp" if streams.implementation == "tcp" else "iperf3"
        rates[name] = max(rates.get(name, 0.0), streams.mb_per_s)
    return {name: rates[name] for name in ("link", "memcpy", "iperf3", "tcp") if name in rates}


def _tensors(suite: Record[LayerResult]) -> list[str]:
    """The rate of tensors, in a sentence."""
    moved = {r.protocol: r for r in suite.results if r.layer == "transfer"}
    if not {"grpc", "grpc++"} <= moved.keys():
        return []
    ours, grpc = moved["grpc++"], moved["grpc"]
    size = data_size(ours.message_size or 0)
    by_figures = Ratio(ours.mb_per_s / grpc.mb_per_s)
    ratio = suite.ratios.get(f"grpc++/grpc {size} transfer", by_figures)
    return [
        f"grpc++ moves a tensor of {size} at {number(ours.mb_per_s)} MB/s, {times(ratio)} as fast "
        "as grpc."
    ]


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


@click.command(
    "all",
    epilog="""\b
Examples:
  tensorwire bench all --report page.html
  tensorwire bench all --quick --json all.json
  tensorwire bench all --lab hosts=2,rate=10gbit,delay=50us --report page.html""",
)
@click.option("--quick", is_flag=True, help="Fewer sizes and rounds: two minutes instead of ten.")
@options_of(SharedOptions, ("protocols", "lab", "transport"))
@takes(Output, "output")
@click.pass_context
def command(
    context: click.Context,
    *,
    quick: bool,
    protocols: tuple[str, ...],
    transport: str | None,
    lab: LabSettings | None,
    output: Output,
) -> None:
    """Measure every layer, from the link to training, and show what each layer loses.

    If a layer fails, its name is printed, the other layers still run, and the exit status is 1.
    After Ctrl-C, the files contain what was measured before.
    """
    named = parse_protocols(",".join(protocols)) if protocols else None
    transport = transport or "tcp"
    check_transport(transport, named, "tcp")
    if lab is not None and transport != "tcp":
        raise UsageError(f"--transport {transport}: the hosts of a lab share no memory")
    notes: list[str] = []
    shared = {"protocols": named or PROTOCOLS, "transport": transport}
    parts = layers(quick, shared, notes)
    blocks = sum(part.blocks for part in parts.values())
    with ProgressDisplay(COMMAND, blocks) as progress, open_host_pool(lab) as chosen:
        suite = run(parts, notes, progress, chosen)
    is_interrupted = INTERRUPTED in suite.failures.values()
    if is_interrupted and not suite.records:
        raise _interrupted("nothing was written")
    showing.give(suite, output)
    if is_interrupted:
        files = [str(path) for path in (output.json_path, output.report_path) if path is not None]
        where = " and ".join(files) or "the table"
        raise _interrupted(f"what was measured before is in {where}")
    context.exit(1 if suite.failures else 0)


def _interrupted(what_became: str) -> TensorwireError:
    return TensorwireError(f"interrupted; {what_became}", exit_code=128 + signal.SIGINT)
