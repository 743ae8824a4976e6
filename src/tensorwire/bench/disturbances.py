"""What a job goes through on each protocol when it is disturbed, side by side.

The jobs of all protocols train at once, on hosts of a lab, with a pause after each step so that
they do not wait for each other's cores, and the same happens to all of them at the same time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorwire.bench.sides import Watcher
from tensorwire.bench.survival import Job, JobSettings, lab_for
from tensorwire.errors import TensorwireError
from tensorwire.lab import HostSettings

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
    """The ps dies while its link is cut."""
    job.set_link("ps:0", CUT)
    job.kill("ps:0")
    job.set_link("ps:0", WELL)


@dataclass(frozen=True)
class Disturbance:
    """Something that begins, lasts, and is over."""

    name: str
    begin: Act
    lasts_s: float
    end: Act
    """Told to restart a task, it is over when the task's process has started."""
    goes_on: bool = False
    """Whether steps are done meanwhile, so that their rate is what there is to know."""


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
    _of_link("loss of 1 %", HostSettings(loss=0.01)),
    _of_link("loss of 10 %", HostSettings(loss=0.1)),
    _of_link("10 ms of delay", HostSettings(delay_s=0.01)),
    _of_link("a tenth of packets 5 ms late", HostSettings(late=0.1, late_s=0.005)),
    _of_link("rate of 1 Mbit/s", HostSettings(rate_bits_per_s=1e6)),
    Disturbance("ps frozen for 45 s", _freeze, 45, _thaw),
    Disturbance("link cut for 60 s", _link(CUT), 60, _link(WELL)),
)


@dataclass(frozen=True)
class Survival:
    """What one disturbance did to the job on one protocol. Nothing was lost, or it had raised."""

    disturbance: str
    protocol: str
    recovery_s: float
    """From its end to the end of the first step."""
    steps_per_s: float | None
    """While it lasted, where steps were done."""
    steps_again: int
    """Done before, and done anew from a checkpoint."""
    errors: list[str]
    """What sessions said that started anew because of it."""


def run(
    protocols: Sequence[str],
    disturbances: Sequence[Disturbance],
    directory: Path,
    watcher: Watcher,
) -> tuple[str | None, list[Survival]]:
    """TensorFlow's version and the results; `watcher.advance` is called for each disturbance.

    Raises:
        TensorwireError: a job did not recover, or lost something; this machine has no lab.
    """
    results: list[Survival] = []
    with contextlib.ExitStack() as stack:
        jobs = []
        for number, protocol in enumerate(protocols):
            watcher.activity(f"starting the job on {protocol}")
            settings = JobSettings(protocol, pause_ms=_PAUSE_MS)
            lab = stack.enter_context(lab_for(settings, relayed=True))
            if not lab.has_network:
                raise TensorwireError(lab.notes[0])
            own = directory / str(number)
            jobs.append(stack.enter_context(Job(settings, own, lab=lab)))
        for each in disturbances:
            watcher.activity(each.name)
            results += _go_through(each, jobs)
            watcher.advance()
        for job in jobs:
            job.stop()
        return jobs[0].tensorflow, results


def _go_through(disturbance: Disturbance, jobs: Sequence[Job]) -> Iterator[Survival]:
    for job in jobs:
        job.go_on(_STEPS_BEFORE, RECOVERY_TIMEOUT_S)
    before = [dataclasses.replace(job.told, recoveries=[*job.told.recoveries]) for job in jobs]
    with contextlib.ExitStack() as stack:
        if not disturbance.goes_on and not disturbance.lasts_s:
            for job in jobs:
                stack.enter_context(job.in_the_middle_of_a_step())
        began = [_now_after(disturbance.begin, job) for job in jobs]
        time.sleep(disturbance.lasts_s)
        done = [job.told.highest for job in jobs]
    ended = [_now_after(disturbance.end, job) for job in jobs]
    for job, told, start, end, highest in zip(jobs, before, began, ended, done, strict=True):
        job.reach(highest + 2, RECOVERY_TIMEOUT_S)
        now = job.told
        again = next(done for done in now.done_at if done > end)
        yield Survival(
            disturbance.name,
            job.settings.protocol,
            again - end,
            (highest - told.highest) / (end - start) if disturbance.goes_on else None,
            (now.steps - told.steps) - (now.highest - told.highest),
            sorted(set(now.recoveries[len(told.recoveries) :])),
        )


def _now_after(act: Act, job: Job) -> float:
    act(job)
    return time.monotonic()
