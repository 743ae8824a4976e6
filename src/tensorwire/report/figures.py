"""The one figure of each result that runs are compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorwire.bench.record import (
    LayerResult,
    LayoutResult,
    MemoryResult,
    Result,
    RpcResult,
    ServeResult,
    StepsResult,
    StrategyResult,
    TcpResult,
    TrainResult,
    TransferResult,
)
from tensorwire.bench.sides import side_name
from tensorwire.units import data_size


@dataclass(frozen=True)
class Figure:
    """What was measured, on which side, and how much it was."""

    of: str
    """With all that makes it comparable: "one ps, 64 clients, 4096 bytes"."""
    side: str
    value: float
    unit: str
    more_is_better: bool = True


def figure(result: Result) -> Figure:
    """The figure of a result."""
    return _FIGURES[type(result)](result)


def _transfer(r: TransferResult) -> Figure:
    side = side_name(r.protocol, r.tensor_fuse)
    return Figure(f"Tensors of {data_size(r.data_mb * 1e6)}", side, r.mb_per_s, "MB/s")


def _steps(r: StepsResult) -> Figure:
    side = side_name(r.protocol, r.tensor_fuse)
    return Figure(f"A step, {r.case}", side, r.step_ms.p50, "ms", more_is_better=False)


def _strategy(r: StrategyResult) -> Figure:
    return Figure(f"Functions a second, {r.case}", r.protocol, r.functions_per_s, "/s")


def _serve(r: ServeResult) -> Figure:
    of = f"One ps, {r.clients} clients with {r.in_flight} request(s), "
    return Figure(
        f"{of}{r.payload} payload of {r.message_size} bytes", r.protocol, r.requests_per_s, "/s"
    )


def _train(r: TrainResult) -> Figure:
    side = side_name(r.protocol, r.tensor_fuse)
    return Figure(f"Training, {r.model}", side, r.steps_per_s, "steps/s")


def _tcp(r: TcpResult) -> Figure:
    return Figure(f"Raw TCP, streams: {r.streams}", r.implementation, r.mb_per_s, "MB/s")


def _rpc(r: RpcResult) -> Figure:
    of = f"RPC, {data_size(r.message_size)}, {r.concurrency} on their way"
    return Figure(of, r.protocol, r.requests_per_s, "/s")


def _memory(r: MemoryResult) -> Figure:
    of = f"Highest memory of {r.task}, tensors of {data_size(r.data_mb * 1e6)}"
    return Figure(of, r.protocol, r.highest_mb, "MB", more_is_better=False)


def _layer(r: LayerResult) -> Figure:
    return Figure(f"Layer {r.layer}", r.protocol or "raw", r.mb_per_s, "MB/s")


def _layout(r: LayoutResult) -> Figure:
    of = f"Case {r.case}, {r.workers} workers, {r.ps} ps, {r.protocol}"
    return Figure(of, f"{r.layout} {r.placement}", r.steps_per_s, "steps/s")


# The keys are the types that their values take; the type system cannot say so.
_FIGURES: Mapping[type[Result], Callable[[Any], Figure]] = {
    TcpResult: _tcp,
    RpcResult: _rpc,
    TransferResult: _transfer,
    StepsResult: _steps,
    StrategyResult: _strategy,
    ServeResult: _serve,
    TrainResult: _train,
    MemoryResult: _memory,
    LayerResult: _layer,
    LayoutResult: _layout,
}
