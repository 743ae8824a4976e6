"""What a machine's steps cost, as a table."""

from __future__ import annotations

from pathlib import Path

from tensorwire.measure.section import Section, Table
from tensorwire.plan.costs import Calibration
from tensorwire.units import number

_US, _NS = 1e6, 1e9
_ROWS = (
    ("a step, whatever crosses: worker (us)", "step_cpu_s", _US),
    ("a request to a ps: worker (us)", "request_worker_cpu_s", _US),
    ("a request to a ps: ps (us)", "request_ps_cpu_s", _US),
    ("a tensor: who sends (us)", "tensor_send_cpu_s", _US),
    ("a tensor: who receives (us)", "tensor_receive_cpu_s", _US),
    ("a kilobyte: who sends (ns)", "byte_send_cpu_s", 1e3 * _NS),
    ("a kilobyte: who receives (ns)", "byte_receive_cpu_s", 1e3 * _NS),
    ("a step's waiting (us)", "step_latency_s", _US),
    ("cores that an exchange keeps busy", "exchange_parallelism", 1.0),
    ("times as much CPU in a crowd", "crowded_factor", 1.0),
)


def section(calibration: Calibration, path: Path) -> Section:
    """The costs, and where they are kept."""
    sides = sorted(calibration.costs)
    rows = [
        [label, *(number(getattr(calibration.costs[side], name) * scale) for side in sides)]
        for label, name, scale in _ROWS
    ]
    return Section(
        title="What a step costs",
        headline=f"kept in {path}: `tensorwire plan` rests on it from now on.",
        tables=[Table("CPU time", ["", *sides], [rows])],
        notes=list(calibration.notes),
    )
