"""`tensorwire plan calibrate`: what a step costs on this machine, from jobs of a few seconds each.

A worker and a ps, on each protocol: nothing to move; one number; many small tensors and few large
ones, only there, only back, and both; and real models. The same variables on the worker itself cost
kernels alone. Then two workers and two ps, who crowd a small machine. The hosts are a lab's, whose
links are as fast as a lab can make them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from tensorwire import __version__
from tensorwire.bench.job import Case, JobSettings, RunningJob, Table, running
from tensorwire.bench.record import Host
from tensorwire.bench.sides import PROTOCOLS, Watcher
from tensorwire.placement.plan import Variable, round_robin
from tensorwire.plan import models
from tensorwire.plan.calibrate_fit import (
    LOCAL,
    Fitted,
    Observation,
    fit_cpu,
    fit_waits,
    others_cores,
)
from tensorwire.plan.cluster import Cluster
from tensorwire.plan.costs import Calibration, Costs, Kernels
from tensorwire.plan.job import Job, JobVariable, Transfer
from tensorwire.plan.predict import predict

LINK_BITS_PER_S = 10e9
BATCH_SIZE = 256
_WARM_UP_S = 0.3
_NOISE_CORES = 0.1
FLOAT_BYTES = 4
_PAIR = 2
"""Workers, and ps, of the crowded jobs."""

_SMALL = (Table(256),) * 200
_LARGE = (Table(1 << 18),) * 4
_MIXED = (Table(1 << 16),) * 12
_MATMULS = 20

CASES = (
    Case("nothing"),
    Case("tiny", tables=(Table(1),)),
    Case("small pull", tables=_SMALL, push=False),
    Case("small push", tables=_SMALL, pull=False),
    Case("small", tables=_SMALL),
    Case("large pull", tables=_LARGE, push=False),
    Case("large push", tables=_LARGE, pull=False),
    Case("large", tables=_LARGE),
    Case("mixed", tables=_MIXED),
    Case("ctr", model="ctr", batch_size=BATCH_SIZE),
)
CROWDED = ("small", "mixed", "ctr")
"""Those that two workers and two ps run as well."""

_PARALLELISM = (1.0, 1.15, 1.3, 1.5, 1.75, 2.0)
_OVERLAP = (0.0, 0.25, 0.5, 0.75, 1.0)
_LATENCY_S = (0.0, 25e-6, 50e-6, 100e-6, 200e-6, 400e-6)
_CROWDED = tuple(0.6 + 0.05 * number for number in range(21))


def calibrate(
    seconds: float, watcher: Watcher, protocols: Sequence[str] = PROTOCOLS
) -> tuple[Calibration, list[Observation]]:
    """Measures each case for so many seconds; and what it rests on.

    Raises:
        TensorwireError: a task failed, or TensorFlow is missing.
    """
    observations: list[Observation] = []
    tensorflow, notes = "", []
    for protocol in protocols:
        for count in (1, _PAIR):
            settings = JobSettings(count, count, protocol, LINK_BITS_PER_S)
            with running(settings, watcher) as job:
                tensorflow = job.tensorflow
                notes += [note for note in job.notes if note not in notes]
                is_first = protocol == protocols[0] and count == 1
                for case in _cases(count, is_first):
                    watcher.activity(f"{case.name}, {count} worker(s) over {protocol}")
                    observations.append(_observed(job, case, seconds))
                    watcher.advance()
    if (others := others_cores(observations)) > _NOISE_CORES:
        notes.append(f"something else kept {others:.1f} cores of the machine busy meanwhile")
    return calibration_of(observations, Host.here(), tensorflow, notes), observations


def runs(protocols: Sequence[str] = PROTOCOLS) -> int:
    """How often `calibrate` tells its watcher to advance."""
    return sum(len(_cases(count, p == protocols[0] and count == 1)) for p in protocols for count in (1, _PAIR))


def calibration_of(
    observations: Sequence[Observation], host: Host, tensorflow: str, notes: Sequence[str]
) -> Calibration:
    """The costs that explain what was observed: pure."""
    fitted = fit_cpu(observations)
    costs = {side: _waiting(side, fitted, observations, host.cores) for side in fitted.costs}
    jobs = {name: _model_job(fitted, name).to_document() for name in fitted.own_s}
    return Calibration(
        host=host,
        tensorflow=tensorflow,
        version=__version__,
        time=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        costs=costs,
        kernels=fitted.kernels,
        measured_workers=max(each.workers for each in observations),
        measured_ps=max(each.ps for each in observations),
        jobs=jobs,
        notes=tuple(notes),
    )


def job_of_tables(case: Case, kernels: Kernels) -> Job:
    """A case made of tables, with the kernels that it runs; its matrix products are left out."""
    variables = []
    for number, table in enumerate(case.tables):
        size = table.floats * FLOAT_BYTES
        moved = Transfer(1, size)
        variables.append(
            JobVariable(
                Variable(f"table{number}", (table.floats,), FLOAT_BYTES),
                pulled=moved if case.pull else Transfer(),
                pushed=moved if case.push else Transfer(),
                ps_cpu_s=kernels.variable_ps_cpu_s + 2 * size * kernels.byte_ps_cpu_s,
            )
        )
    size = 2 * sum(each.pulled.bytes for each in variables)
    own_s = len(variables) * kernels.variable_worker_cpu_s + size * kernels.byte_worker_cpu_s
    return Job(case.name, "made of tables", 1, tuple(variables), own_s)


def lab(workers: int, ps: int, cores: float, bits_per_s: float) -> Cluster:
    """Hosts that share one machine, the ps first."""
    return Cluster.one_machine(
        cores, range(ps, ps + workers), range(ps), bits_per_s / 8, layout="lab"
    )


def _cases(count: int, with_local: bool) -> list[Case]:
    if count > 1:
        return [case for case in CASES if case.name in CROWDED]
    local = [dataclasses.replace(case, is_local=True) for case in CASES if case.tables]
    return [*CASES, *(local if with_local else [])]


def _observed(job: RunningJob, case: Case, seconds: float) -> Observation:
    settings = job.settings
    spread = tuple(
        dataclasses.replace(table, ps=number % settings.ps)
        for number, table in enumerate(case.tables)
    )
    job.open(dataclasses.replace(case, tables=spread))
    measured = job.measure(seconds, warm_up_s=_WARM_UP_S)
    job.close()
    steps = sum(measured.steps.values())
    cpu_s = {
        end: sum(s for name, s in measured.cpu_s.items() if name.startswith(end)) / steps
        for end in ("worker", "ps")
    }
    moved = _moved(case)
    return Observation(
        case=case.name,
        side=LOCAL if case.is_local else settings.protocol,
        workers=settings.workers,
        ps=settings.ps,
        variables=len(case.tables),
        to_worker=moved.to_worker,
        to_ps=moved.to_ps,
        model=case.model,
        step_s=settings.workers / measured.steps_per_s,
        worker_cpu_s=cpu_s["worker"],
        ps_cpu_s=cpu_s["ps"],
        machine_cpu_s=measured.machine_cpu_s / steps,
    )


def _job(case: Case, fitted: Fitted) -> Job:
    if case.model:
        own = fitted.own_s.get(case.model, (0.0, 0.0))
        return models.job_of(case.model, case.batch_size, *own, "measured with one worker, one ps")
    return job_of_tables(case, fitted.kernels)
