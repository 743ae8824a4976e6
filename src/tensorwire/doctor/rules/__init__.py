"""The rules. Each is a function from the evidence to a finding, or to None."""

from __future__ import annotations

from collections.abc import Callable

from tensorwire.doctor.evidence import Evidence, Finding
from tensorwire.doctor.rules.compute import (
    polling_crowded,
    ps_cpu_bound,
    threads_over_cores,
    worker_compute_bound,
)
from tensorwire.doctor.rules.input import input_bound
from tensorwire.doctor.rules.network import link_saturated, rpc_below_link, small_tensors
from tensorwire.doctor.rules.placement import big_variable, hot_ps
from tensorwire.doctor.rules.stalled import no_step
from tensorwire.doctor.rules.workers import no_device_filters, straggler, workers_past_saturation

RULES: tuple[Callable[[Evidence], Finding | None], ...] = (
    no_step,
    hot_ps,
    big_variable,
    small_tensors,
    link_saturated,
    rpc_below_link,
    ps_cpu_bound,
    worker_compute_bound,
    input_bound,
    straggler,
    polling_crowded,
    threads_over_cores,
    workers_past_saturation,
    no_device_filters,
)
