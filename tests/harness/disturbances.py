"""Disturbs one job per protocol at the same time.

The jobs of all protocols train at the same time, with a pause after each step so that they do not
compete for cores. The same disturbance affects all of them at the same time, in the middle of a
step half-way between two checkpoints. Tasks and links are disturbed in jobs on hosts of a lab, one
disturbance after the other; each machine fault has its own jobs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.machine_faults import MACHINE_FAULTS, MachineFault
from harness.relaying import DisturbedLink
from harness.survival import Job, JobSettings, Told, lab_for
from tensorwire.bench.frame.tasks import Watcher
from tensorwire.bench.lab import HostSettings
from tensorwire.errors import TensorwireError

RECOVERY_TIMEOUT_S = 240.0
_STEPS_BEFORE = 60
_PAUSE_MS = 20
_LASTING_S = 15.0

Act = Callable[[Job], None]
WELL = HostSettings()
CUT = HostSettings(is_cut=True)


def _signal_killed(name: str) -> Act:
    return lambda job: job.kill(name)


def _begun(name: str) -> Act:
    def act(job: Job) -> None:
        job.begin(name)

    return act


def _link(settings: HostSettings) -> Act:
    return lambda job: job.set_link("ps:0", settings)


def _freeze(job: Job) -> None:
    job.freeze("ps:0")


def _thaw(job: Job) -> None:
    job.thaw("ps:0")


def _killed_unheard(job: Job) -> None:
    """Kills the ps while its link is cut, so that its peers are not notified."""
    job.set_link("ps:0", CUT)
    job.kill("ps:0")
    job.set_link("ps:0", WELL)


@dataclass(frozen=True)
class Disturbance:
    """A disturbance with a begin, a duration and an end."""

    name: str
    begin: Act
    lasts_s: float
    end: Act
    """Ends the disturbance. A restart of a task counts as ended when its process has started."""
    goes_on: bool = False
    """True if steps continue during the disturbance; then their rate is measured."""


def _of_link(name: str, settings: HostSettings) -> Disturbance:
    return Disturbance(name, _link(settings), _LASTING_S, _link(WELL), goes_on=True)


DISTURBANCES = (
    Disturbance("nothing", lambda job: None, _LASTING_S, lambda job: None, goes_on=True),
    Disturbance("ps killed in mid-step", _signal_killed("ps:0"), 0, _begun("ps:0")),
    Disturbance("worker killed", _signal_killed("worker:1"), 0, _begun("worker:1")),
    Disturbance("chief killed", _signal_killed("worker:0"), 0, _begun("worker:0")),
    Disturbance("ps gone without a word", _killed_unheard, 0, _begun("ps:0")),
    Disturbance("ps frozen for 5 s", _freeze, 5, _thaw),
    Disturbance("link cut for 1 s", _link(CUT), 1, _link(WELL)),
    _of_link("loss of 1 %", DisturbedLink(loss=0.01)),
    _of_link("loss of 10 %", DisturbedLink(loss=0.1)),
    _of_link("10 ms of delay", HostSettings(delay_s=0.01)),
    _of_link("a tenth of packets 5 ms late", DisturbedLink(late=0.1, late_s=0.005)),
    _of_link("rate of 1 Mbit/s", HostSettings(rate_bits_per_s=1e6)),
    Disturbance("ps frozen for 45 s", _freeze, 45, _thaw),
    Disturbance("link cut for 60 s", _link(CUT), 60, _link(WELL)),
)


ALL: tuple[Disturbance | type[MachineFault], ...] = (*DISTURBANCES, *MACHINE_FAULTS)


@dataclass(frozen=True)
class Survival:
    """The effect of one disturbance on the job of one protocol. A lost update raises."""

    disturbance: str
    protocol: str
    recovery_s: float
    """Seconds from the disturbance's end to the end of the first new step."""
    steps_per_s: float | None
    """Rate during the disturbance; None if no steps were done."""
    steps_again: int
    """Number of steps that were repeated from a checkpoint."""
    errors: list[str]
    """The errors of sessions that were restarted because of it."""
    failure: str = ""
    """Why the training ended, if it did. The chief was then restarted."""


def run(
    protocols: Sequence[str],
    disturbances: Sequence[Disturbance | type[MachineFault]],
    directory: Path,
    watcher: Watcher,
) -> tuple[str | None, list[Survival]]:
    """TensorFlow's version and the results; `watcher.advance` is called for each disturbance.

    Raises:
        TensorwireError: a job did not recover or lost an update, or this machine cannot disturb it.
    """
    results: list[Survival] = []
    tensorflow = None
    of_jobs = [each for each in disturbances if isinstance(each, Disturbance)]
    if of_jobs:
        with contextlib.ExitStack() as stack:
            jobs = []
            for number, protocol in enumerate(protocols):
                watcher.activity(f"starting the job on {protocol}")
                settings = JobSettings(protocol, pause_ms=_PAUSE_MS)
                lab = stack.enter_context(lab_for(settings, relayed=True))
                if not lab.has_network:
                    raise TensorwireError(lab.notes[0])
                own = directory / f"lab-{number}"
                jobs.append(stack.enter_context(Job(settings, own, lab=lab)))
            for each in of_jobs:
                watcher.activity(each.name)
                results += _go_through(each, jobs)
                watcher.advance()
            for job in jobs:
                job.stop()
            tensorflow = jobs[0].tensorflow
    for number, fault in enumerate(each for each in disturbances if isinstance(each, type)):
        watcher.activity(fault.name)
        with contextlib.ExitStack() as stack:
            faults = []
            for protocol in protocols:
                settings = JobSettings(protocol, pause_ms=_PAUSE_MS)
                own = directory / f"{number}-{protocol}"
                faults.append(stack.enter_context(fault(settings, own)))
            jobs = [stack.enter_context(each.job()) for each in faults]
            results += _suffer(faults, jobs)
            for job in jobs:
                job.stop()
            tensorflow = jobs[0].tensorflow
        watcher.advance()
    return tensorflow, results


def _go_through(disturbance: Disturbance, jobs: Sequence[Job]) -> list[Survival]:
    with contextlib.ExitStack() as stack:
        for job in jobs:
            job.reach(job.half_way(_STEPS_BEFORE), RECOVERY_TIMEOUT_S)
            if not disturbance.goes_on:
                stack.enter_context(job.in_the_middle_of_a_step())
        before = [_copy(job.told) for job in jobs]
        began = [_now_after(disturbance.begin, job) for job in jobs]
    time.sleep(disturbance.lasts_s)
    done = [job.told.highest for job in jobs]
    ended = [_now_after(disturbance.end, job) for job in jobs]
    results = _survivals(disturbance.name, jobs, before, ended, done)
    if not disturbance.goes_on:
        return results
    return [
        dataclasses.replace(result, steps_per_s=(highest - told.highest) / (end - start))
        for result, told, start, end, highest in zip(
            results, before, began, ended, done, strict=True
        )
    ]


def _suffer(faults: Sequence[MachineFault], jobs: Sequence[Job]) -> list[Survival]:
    for fault, job in zip(faults, jobs, strict=True):
        if not fault.later:
            job.reach(job.half_way(1), RECOVERY_TIMEOUT_S)
    before = [_copy(job.told) for job in jobs]
    failures = [fault.begin(job) for fault, job in zip(faults, jobs, strict=True)]
    done = [job.told.highest for job in jobs]
    ended = [_now_after(fault.end, job) for fault, job in zip(faults, jobs, strict=True)]
    results = _survivals(faults[0].name, jobs, before, ended, done)
    return [
        dataclasses.replace(result, failure=failure or result.failure)
        for result, failure in zip(results, failures, strict=True)
    ]


def _copy(told: Told) -> Told:
    return dataclasses.replace(told, recoveries=[*told.recoveries])


def _survivals(
    name: str,
    jobs: Sequence[Job],
    before: Sequence[Told],
    ended: Sequence[float],
    done: Sequence[int],
) -> list[Survival]:
    """The effects, after every job has completed a step beyond `done`, its last at the end."""

    def survival(job: Job, told: Told, end: float, highest: int) -> Survival:
        failure = job.reach_at_last(highest + 1, RECOVERY_TIMEOUT_S)
        now = job.told
        return Survival(
            name,
            job.settings.protocol,
            recovery_s=max(0.0, now.reached_at[highest + 1] - end),
            steps_per_s=None,
            steps_again=(now.steps - told.steps) - (now.highest - told.highest),
            errors=sorted(set(now.recoveries[len(told.recoveries) :])),
            failure=failure,
        )

    with ThreadPoolExecutor(len(jobs)) as waiting:
        return [*waiting.map(survival, jobs, before, ended, done)]


def _now_after(act: Act, job: Job) -> float:
    act(job)
    return time.monotonic()
