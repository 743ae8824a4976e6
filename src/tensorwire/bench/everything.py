"""`bench all`: every layer from the link to training, one after the other, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tensorwire.bench import serve, sizes, stats, steps, strategy, train
from tensorwire.bench.noise import NoiseWatch
from tensorwire.bench.places import HERE, Places
from tensorwire.bench.record import LayerResult, Ratio, Record, Result, TrainResult, TransferResult
from tensorwire.bench.sides import PROTOCOLS, Setting, Watcher
from tensorwire.bench.suite import COMMAND, Suite
from tensorwire.errors import TensorwireError
from tensorwire.units import data_size

_TRAIN_BLOCKS = 20
INTERRUPTED = "interrupted"
SomeResult = TypeVar("SomeResult", bound=Result)


BETWEEN_HOSTS = Setting(transport="tcp")


@dataclass(frozen=True)
class EverythingPlan:
    """One call of `bench all`.

    Payloads go by TCP unless `setting` says otherwise, as they do between hosts: a layer can be
    compared with the one below it only where both go the same way.
    """

    quick: bool = False
    protocols: tuple[str, ...] = PROTOCOLS
    setting: Setting = BETWEEN_HOSTS


@dataclass(frozen=True)
class Layer:
    """One experiment of the call."""

    name: str
    blocks: int
    """How often it advances its watcher."""
    run: Callable[[Watcher, Places], Sequence[Record[Result]]]


def layers(plan: EverythingPlan, notes: list[str]) -> list[Layer]:
    """What will be run, in this order; what had to be left out is added to `notes`."""
    common: dict[str, Any] = {"protocols": plan.protocols, "setting": plan.setting}
    quick = plan.quick
    transfer_plan = _sizes_plan(plan, notes)
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
        Layer("transfer", transfer_plan.blocks, lambda w, p: [sizes.run(transfer_plan, w, p)]),
        Layer(
            "steps",
            len(stats.split(steps_plan.iters, steps_plan.rounds)),
            lambda w, p: [steps.run(steps_plan, w, p)],
        ),
        Layer(
            "serve",
            len(stats.split(serve_plan.requests, serve_plan.rounds)),
            lambda w, p: [serve.run(serve_plan, w, p)],
        ),
        Layer(
            "strategy",
            sum(len(strategy_plan.blocks(case)) for case in strategy_plan.cases),
            lambda w, p: [strategy.run(strategy_plan, w, p)],
        ),
        Layer("train", _TRAIN_BLOCKS, lambda w, p: [_train(train_plan, w, p)]),
    ]


def _sizes_plan(plan: EverythingPlan, notes: list[str]) -> sizes.SizesPlan:
    chosen = (64, 10_000, 1_000_000, sizes.CEILING_BYTES) if plan.quick else sizes.SIZES_BYTES
    wanted = sizes.SizesPlan(chosen, 3 if plan.quick else 5, plan.protocols, plan.setting)
    too_large = wanted.too_large()
    if not too_large:
        return wanted
    names = ", ".join(map(data_size, too_large))
    notes.append(f"tensors of {names} are left out: this machine has not the memory for them now")
    fitting = tuple(size for size in chosen if size not in too_large)
    return sizes.SizesPlan(fitting, wanted.rounds, plan.protocols, plan.setting)


def _train(plan: train.TrainPlan, watcher: Watcher, places: Places) -> Record[TrainResult]:
    """Its progress in steps becomes one in blocks."""
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

    return train.run("bench train", plan, on_progress, places)


class _Part:
    """The watcher of one layer: says which it is, and counts what it has advanced."""

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
    plan: Sequence[Layer], notes: Sequence[str], watcher: Watcher, places: Places = HERE
) -> Suite:
    """Runs the layers; `watcher.advance` is called for the blocks of all of them.

    One that fails does not stop the others. Ctrl-C does: what was measured before is in the
    suite, and INTERRUPTED is why the rest is not.
    """
    noise = NoiseWatch()
    records: list[Record[Result]] = []
    failures: dict[str, str] = {}
    for index, layer in enumerate(plan):
        part = _Part(watcher, f"{index + 1} of {len(plan)}, {layer.name}")
        try:
            records += layer.run(part, places)
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
        tensorflow=next((r.tensorflow for r in reversed(records) if r.tensorflow), ""),
        results=what_is_left(records),
        ratios=_ratios(records),
        noise=noise.seen({}),
    )
    return Suite(summary, records, failures, notes)


def what_is_left(records: Sequence[Record[Result]]) -> list[LayerResult]:
    """The rate of each layer at one size, the lowest layer first, under each protocol."""
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
    for moved in _at_one_size(records):
        add("transfer", moved.mb_per_s, moved.protocol, round(moved.data_mb * 1e6))
    for trained in _of_type(records, TrainResult):
        if trained.wire_mb_per_step is not None:
            add("train", trained.wire_mb_per_step * trained.steps_per_s, trained.protocol)
    return found


def _lowest(records: Sequence[Record[Result]]) -> dict[str, float]:
    """MB/s of what is below every protocol: the link, or memcpy where there is none; raw TCP."""
    rates: dict[str, float] = {}
    for record in records:
        rates |= record.ceilings
    link = next((rate for record in records if (rate := _link_mb_per_s(record)) is not None), None)
    if link is not None:
        rates["link"] = link
    return {name: rates[name] for name in ("link", "memcpy", "iperf3", "tcp") if name in rates}


def _link_mb_per_s(record: Record[Result]) -> float | None:
    """The slowest link of the lab; None where none has a rate."""
    if record.lab is None or not record.lab["network"]:
        return None
    rates = record.lab["rate_mbit_per_s"]
    of_hosts = rates if isinstance(rates, list) else [rates]
    return min((rate / 8 for rate in of_hosts if rate is not None), default=None)


def _at_one_size(records: Sequence[Record[Result]]) -> list[TransferResult]:
    """Of all transfers those of sizes.CEILING_BYTES, or of the largest size below."""
    results = [
        result
        for result in _of_type(records, TransferResult)
        if result.data_mb * 1e6 <= sizes.CEILING_BYTES
    ]
    largest = max((result.data_mb for result in results), default=0.0)
    return [result for result in results if result.data_mb == largest]


def _of_type(
    records: Sequence[Record[Result]], result_type: type[SomeResult]
) -> Iterator[SomeResult]:
    for record in records:
        for result in record.results:
            if isinstance(result, result_type):
                yield result


def _ratios(records: Sequence[Record[Result]]) -> dict[str, Ratio]:
    """Those of each experiment, named after it: "grpc++/grpc serve"."""
    found = {}
    for record in records:
        for name, ratio in record.ratios.items():
            found[f"{name} {record.command.removeprefix('bench ')}"] = ratio
    return found
