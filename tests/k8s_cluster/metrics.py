"""Metrics of the tasks of a job that trains at a steady rate."""

from __future__ import annotations

import dataclasses

from tensorwire.metrics.task_metrics import (
    PeerTraffic,
    PoolMetrics,
    ProcessMetrics,
    ServedTask,
    TaskMetrics,
    TensorMetrics,
)

_NOTHING = dict.fromkeys([field.name for field in dataclasses.fields(PeerTraffic)][2:], 0)
STEP_BYTES = 1_000_000


def full_name(task: str) -> str:
    job, index = task.split(":")
    return f"/job:{job}/replica:0/task:{index}"


def metrics(
    task: str, seconds: float, steps_per_s: float = 10.0, workers: int = 1, ps: int = 1
) -> TaskMetrics:
    """Metrics of a task after `seconds`; each worker receives STEP_BYTES from each ps per step."""
    name = full_name(task)
    steps = int(seconds * steps_per_s)
    is_ps = task.startswith("ps:")
    peers = [f"worker:{i}" for i in range(workers)] if is_ps else [f"ps:{i}" for i in range(ps)]
    moved = {("tx_bytes" if is_ps else "rx_bytes"): steps * STEP_BYTES}
    return TaskMetrics(
        process=ProcessMetrics(f"host-of-{task}", 1, 0.5, 0.0, 0.25 * seconds, 512_000_000),
        clock_us=int(seconds * 1e6),
        recv_tensors=0,
        pushed_tensors=0,
        served_tensors=0,
        run_graphs=steps * workers if is_ps else 0,
        eager_calls=0,
        fused_messages=0,
        fused_tensors=0,
        recv_waiting_us=0,
        pool=PoolMetrics(),
        tasks=(ServedTask(name, 0),),
        peers=tuple(PeerTraffic(name, full_name(p), **{**_NOTHING, **moved}) for p in peers),
        reactors=(),
        tensors=()
        if is_ps
        else tuple(
            TensorMetrics(name, full_name(p), "in", "embedding", steps, steps * STEP_BYTES, 0, 0)
            for p in peers
        ),
    )
