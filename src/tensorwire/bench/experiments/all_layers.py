"""`bench all`: every layer from the link to training, one after the other, in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tensorwire.bench.experiments import rpc, serve, steps, strategy, tcp, train, transfer
from tensorwire.bench.experiments.rpc import RpcResult
from tensorwire.bench.experiments.tcp import TcpResult
from tensorwire.bench.experiments.train import TrainResult
from tensorwire.bench.experiments.transfer import TransferResult
from tensorwire.bench.frame.contenders import PROTOCOLS, Setting
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.noise import NoiseWatch
from tensorwire.bench.frame.record import Metric, Noise, Ratio, Record, Result, not_a_record
from tensorwire.bench.frame.task_processes import Watcher
from tensorwire.dataclass_json import json_text
from tensorwire.errors import TensorwireError
from tensorwire.files import write_whole
from tensorwire.report.section import Section
from tensorwire.units import data_size


@dataclass(frozen=True)
class LayerResult(Result):
    """`bench all`: the share of the link's rate that is left at one layer."""

    commands = ("bench all",)

    layer: str
    """"link" or, on one machine, "memcpy"; "iperf3", "tcp", "rpc", "transfer", "train"."""
    protocol: str | None
    """The protocol; None for a layer without one (raw TCP)."""
    message_size: int | None
    """Bytes of one message; None if the layer has no single size."""
    mb_per_s: float
    of_layer_below: float | None
    """Rate divided by that of the layer below, under the same protocol; None for the lowest layer.

    iperf3 is next to tcp, directly above the link.
    """

    @property
    def metric(self) -> Metric:
        return Metric(f"Layer {self.layer}", self.protocol or "raw", self.mb_per_s, "MB/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        raise ValueError("the layers are shown together with the records that they summarize")


COMMAND = "bench all"
_TRAIN_BLOCKS = 20
INTERRUPTED = "interrupted"
SomeResult = TypeVar("SomeResult", bound=Result)


BETWEEN_HOSTS = Setting(transport="tcp")


@dataclass(frozen=True)
class Suite:
    """One call of `bench all`."""

    summary: Record[LayerResult]
    """The share of the link that each layer reaches; its ratios compare the layers."""
    records: Sequence[Record[Result]]
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why a layer has no record, by the layer's name."""
    notes: Sequence[str] = ()

    def to_json(self) -> str:
        """The summary record, with the other records inside it."""
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
            TensorwireError: the document is not such a record.
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
        """Writes the JSON to `path` atomically.

        Raises:
            TensorwireError: the file cannot be written.
        """
        write_whole(path, self.to_json())


@dataclass(frozen=True)
class AllLayersPlan:
    """One call of `bench all`.

    Payloads use TCP, as between hosts, unless `setting` says otherwise. A layer can be compared
    with the layer below only if both use the same path.
    """

    quick: bool = False
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = BETWEEN_HOSTS


@dataclass(frozen=True)
class Layer:
    """One experiment of the call."""

    name: str
    blocks: int
    """The number of `advance` calls that the experiment makes."""
    run: Callable[[Watcher, HostPool], Iterable[Record[Result]]]
    """Yields records one by one; those before a failure are kept."""


def layers(plan: AllLayersPlan, notes: list[str]) -> list[Layer]:
    """The experiments to run, in order; adds a note for what is left out to `notes`."""
    common: dict[str, Any] = {"protocols": plan.protocols, "setting": plan.setting}
    quick = plan.quick
    tcp_plan = tcp.TcpPlan(rounds=2 if quick else 5)
    transfer_plan = _sizes_plan(plan, notes)
    rpc_plans = [
        rpc.RpcPlan(
            size,
            concurrency=1 if size > transfer.CEILING_BYTES else None,
            rounds=3 if quick else 5,
            protocols=plan.protocols,
        )
        for size in transfer_plan.sizes_bytes
    ]
    alone_plan = rpc.RpcPlan(concurrency=1, rounds=3 if quick else 10, protocols=plan.protocols)
    steps_plan = steps.StepsPlan(**common, iters=120 if quick else 600, rounds=4 if quick else 20)
    serve_plan = serve.ServePlan(
        **common,
        requests=20_000 if quick else 200_000,
        rounds=4 if quick else 10,
    )
    strategy_plan = strategy.StrategyPlan(
        **common, iters=40 if quick else None, rounds=4 if quick else 10
    )
    train_plan = train.TrainPlan(**common, steps=300 if quick else 2000, rounds=4 if quick else 8)
    return [
        Layer("tcp", tcp_plan.blocks, lambda w, p: [tcp.run(tcp_plan, w, p)]),
        Layer(
            "rpc",
            sum(each.blocks for each in (*rpc_plans, alone_plan)),
            lambda w, p: _rpc(rpc_plans, alone_plan, w, p),
        ),
        Layer("transfer", transfer_plan.blocks, lambda w, p: [transfer.run(transfer_plan, w, p)]),
        Layer("steps", steps_plan.blocks, lambda w, p: [steps.run(steps_plan, w, p)]),
        Layer("serve", serve_plan.blocks, lambda w, p: [serve.run(serve_plan, w, p)]),
        Layer("strategy", strategy_plan.blocks, lambda w, p: [strategy.run(strategy_plan, w, p)]),
        Layer("train", _TRAIN_BLOCKS, lambda w, p: [_train(train_plan, w, p)]),
    ]


def _sizes_plan(plan: AllLayersPlan, notes: list[str]) -> transfer.SizesPlan:
    chosen = (64, 10_000, 1_000_000, transfer.CEILING_BYTES) if plan.quick else transfer.SIZES_BYTES
    wanted = transfer.SizesPlan(chosen, 3 if plan.quick else 5, plan.protocols, plan.setting)
    too_large = wanted.too_large()
    if not too_large:
        return wanted
    names = ", ".join(map(data_size, too_large))
    notes.append(f"tensors of {names} are left out: there is not enough free memory for them")
    fitting = tuple(size for size in chosen if size not in too_large)
    return transfer.SizesPlan(fitting, wanted.rounds, plan.protocols, plan.setting)


def _rpc(
    over_sizes: Sequence[rpc.RpcPlan], alone: rpc.RpcPlan, watcher: Watcher, host_pool: HostPool
) -> Iterator[Record[RpcResult]]:
    """Two records: one of all sizes, one of small requests in sequence."""
    done: list[Record[RpcResult]] = []
    try:
        for plan in over_sizes:
            part = _LayerWatcher(watcher, data_size(plan.message_size))
            done.append(rpc.run(plan, part, host_pool))
    finally:
        if done:
            yield of_all_sizes(done)
    yield rpc.run(alone, _LayerWatcher(watcher, "one at a time"), host_pool)


def of_all_sizes(records: Sequence[Record[RpcResult]]) -> Record[RpcResult]:
    """Merges the records of several sizes into one.

    Ratios have names such as "grpc++/grpc 64 B", and scatters such as "grpc 64 B".
    """
    named = [(data_size(record.results[0].message_size), record) for record in records]
    noises = [(size, record.noise) for size, record in named if record.noise is not None]
    return dataclasses.replace(
        records[0],
        results=[result for record in records for result in record.results],
        ratios={
            f"{name} {size}": ratio
            for size, record in named
            for name, ratio in record.ratios.items()
        },
        noise=Noise(
            load_start=noises[0][1].load_start,
            load_end=noises[-1][1].load_end,
            steal=max(noise.steal for _, noise in noises),
            scatter={
                f"{name} {size}": share
                for size, noise in noises
                for name, share in noise.scatter.items()
            },
        ),
    )


def _train(plan: train.TrainPlan, watcher: Watcher, host_pool: HostPool) -> Record[TrainResult]:
    """Runs the training experiment, and reports its steps to `watcher` as blocks."""
    done: dict[str, int] = {}
    advanced = 0

    def on_progress(progress: train.TrainProgress) -> None:
        nonlocal advanced
        watcher.activity(f"{progress.contender}: {progress.phase}")
        done[progress.contender] = progress.step
        of = progress.steps * len(plan.contenders)
        blocks = min(_TRAIN_BLOCKS, _TRAIN_BLOCKS * sum(done.values()) // of)
        watcher.advance(blocks - advanced)
        advanced = blocks

    return train.run("bench train", plan, on_progress, host_pool)


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
    plan: Sequence[Layer],
    notes: Sequence[str],
    watcher: Watcher,
    host_pool: HostPool = THIS_MACHINE,
) -> Suite:
    """Runs the layers; calls `watcher.advance` for the blocks of all layers.

    A failed layer does not stop the others. Ctrl-C does: the suite then contains the layers
    measured before, and INTERRUPTED as the failure of the rest.
    """
    noise = NoiseWatch()
    records: list[Record[Result]] = []
    failures: dict[str, str] = {}
    for index, layer in enumerate(plan):
        part = _LayerWatcher(watcher, f"{index + 1} of {len(plan)}, {layer.name}")
        try:
            records.extend(layer.run(part, host_pool))
        except TensorwireError as error:
            failures[layer.name] = str(error)
        except KeyboardInterrupt:
            failures |= dict.fromkeys((each.name for each in plan[index:]), INTERRUPTED)
            break
        except Exception as error:
            failures[layer.name] = f"{type(error).__name__}: {error}"
        watcher.advance(layer.blocks - part.advanced)
    summary = Record(
        command=COMMAND,
        tensorflow=next((r.tensorflow for r in records if r.tensorflow), None),
        results=what_is_left(records),
        ratios=_ratios(records),
        noise=noise.seen({}),
        lab=host_pool.document,
    )
    return Suite(summary, records, failures, notes)


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

    for name, rate in _lowest(records).items():
        add(name, rate)
    moved = [each for each in _of_type(records, TransferResult) if _comparable(each.data_mb * 1e6)]
    size = max((round(each.data_mb * 1e6) for each in moved), default=transfer.CEILING_BYTES)
    for called in _of_type(records, RpcResult):
        if called.message_size == size:
            add("rpc", called.mb_per_s, called.protocol, size)
    for each in moved:
        if round(each.data_mb * 1e6) == size:
            add("transfer", each.mb_per_s, each.protocol, size)
    for trained in _of_type(records, TrainResult):
        if trained.wire_mb_per_step is not None:
            add("train", trained.wire_mb_per_step * trained.steps_per_s, trained.protocol)
    return found


def _lowest(records: Sequence[Record[Result]]) -> dict[str, float]:
    """MB/s of the layers below all protocols: the link, or memcpy if there is none; raw TCP."""
    rates: dict[str, float] = {}
    for record in records:
        rates |= record.ceilings
    # Several streams count if they are faster than one.
    for streams in _of_type(records, TcpResult):
        name = "tcp" if streams.implementation == "tcp" else "iperf3"
        rates[name] = max(rates.get(name, 0.0), streams.mb_per_s)
    link = next((rate for record in records if (rate := _link_mb_per_s(record)) is not None), None)
    if link is not None:
        rates["link"] = link
    return {name: rates[name] for name in ("link", "memcpy", "iperf3", "tcp") if name in rates}


def _link_mb_per_s(record: Record[Result]) -> float | None:
    """The slowest link of the lab; None if no link has a rate."""
    if record.lab is None or not record.lab["network"]:
        return None
    rates = record.lab["rate_mbit_per_s"]
    of_hosts = rates if isinstance(rates, list) else [rates]
    return min((rate / 8 for rate in of_hosts if rate is not None), default=None)


def _comparable(size_bytes: float) -> bool:
    return size_bytes <= transfer.CEILING_BYTES


def _of_type(
    records: Sequence[Record[Result]], result_type: type[SomeResult]
) -> Iterator[SomeResult]:
    for record in records:
        for result in record.results:
            if isinstance(result, result_type):
                yield result


def _ratios(records: Sequence[Record[Result]]) -> dict[str, Ratio]:
    """The ratios of all experiments, with the experiment's name: "grpc++/grpc serve"."""
    return {
        f"{name} {_experiment(record)}": ratio
        for record in records
        for name, ratio in record.ratios.items()
    }


def _experiment(record: Record[Result]) -> str:
    name = record.command.removeprefix("bench ")
    first = record.results[0]
    alone = isinstance(first, RpcResult) and first.concurrency == 1
    return f"{name}, one at a time" if alone else name
