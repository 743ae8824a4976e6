"""Trains for a given time while random tasks are killed, frozen and cut off.

    python tests/soak/soak.py --minutes 480 --seed 7

2 ps and 2 workers run on hosts of a lab (without root: on this machine, and no link is cut). A peer
counts as lost after 3 s instead of 30 s, so that disturbances may be shorter or longer than that.
The results of every step are compared with an undisturbed job's, and training must continue after
each disturbance. In the first third of the time, every task may be killed. After that `ps:1` and
the chief are never killed, and at the end they may hold no more resources than after that third.
Exit status 1, with a message, if something is wrong.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.survival import Holdings, Job, JobSettings, lab_for
from tensorwire.bench.lab import HostSettings
from tensorwire.cli.main import run_command
from tensorwire.errors import TensorwireError

PEER_TIMEOUT_S = 3
LONGEST_S = 2.5 * PEER_TIMEOUT_S
STEPS_BETWEEN = 40
RECOVERY_TIMEOUT_S = 180.0
TASKS = ("ps:0", "ps:1", "worker:0", "worker:1")
SURVIVORS = ("ps:1", "worker:0")

# gRPC opens connections between tasks on demand, and a lost connection may be closed after its
# successor was opened.
MORE_DESCRIPTORS = 3 * (len(TASKS) - 1)
# Pools of TensorFlow and gRPC grow when more of their threads block at once than ever before, but
# not with every disturbance.
MORE_THREADS = 24
# Memory that the allocator keeps, and memory of sessions that ended without being closed.
MORE_MB = 50.0
MORE_MB_A_DISTURBANCE = 0.5


@dataclass(frozen=True)
class Disturbance:
    """A disturbance of a task, and its duration."""

    kind: str
    task: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.task} {self.lasts_s:.1f} s"


def drawn(chance: random.Random, kinds: list[str], mortal: tuple[str, ...]) -> Disturbance:
    kind = chance.choice(kinds)
    task = chance.choice(mortal if kind == "kill" else TASKS)
    # Half of the disturbances are shorter than the peer timeout.
    lasts_s = chance.uniform(0, LONGEST_S if chance.random() < 0.5 else PEER_TIMEOUT_S / 2)
    return Disturbance(kind, task, lasts_s)


def disturb(job: Job, what: Disturbance) -> None:
    if what.kind == "kill":
        job.kill(what.task)
        time.sleep(what.lasts_s)
        job.restart(what.task)
    elif what.kind == "freeze":
        with job.frozen(what.task):
            time.sleep(what.lasts_s)
    else:
        with job.link(what.task, HostSettings(is_cut=True)):
            time.sleep(what.lasts_s)


def for_some_time(
    job: Job,
    minutes: float,
    chance: random.Random,
    mortal: tuple[str, ...],
    say: Callable[[str], None],
) -> int:
    """Disturbs the job for a given time; returns the number of disturbances."""
    assert job.lab is not None
    kinds = ["kill", "freeze", *(["cut"] if job.lab.has_network else [])]
    deadline = time.monotonic() + minutes * 60
    count = 0
    while time.monotonic() < deadline:
        what = drawn(chance, kinds, mortal)
        begin = time.monotonic()
        disturb(job, what)
        over = time.monotonic()
        again = job.go_on(1, RECOVERY_TIMEOUT_S)
        job.go_on(STEPS_BETWEEN, RECOVERY_TIMEOUT_S)
        count += 1
        say(
            f"{what}: over after {over - begin:.1f} s, a step {max(0.0, again - over):.1f} s later"
            f" (step {job.told.highest}, {len(job.told.recoveries)} recoveries)"
        )
    return count


def leaks(before: dict[str, Holdings], after: dict[str, Holdings], disturbances: int) -> list[str]:
    """The resources that survivors have leaked."""
    found = []
    for name, was in before.items():
        now = after[name]
        more_mb = MORE_MB + MORE_MB_A_DISTURBANCE * disturbances
        if now.descriptors > was.descriptors + MORE_DESCRIPTORS:
            found.append(f"{name}: {was.descriptors} descriptors became {now.descriptors}")
        if now.threads > was.threads + MORE_THREADS:
            found.append(f"{name}: {was.threads} threads became {now.threads}")
        if now.resident_mb > was.resident_mb + more_mb:
            found.append(f"{name}: {was.resident_mb:.0f} MB became {now.resident_mb:.0f}")
    return found


def run(protocol: str, minutes: float, seed: int, say: Callable[[str], None]) -> None:
    """Runs the soak test. Raises TensorwireError if something is wrong."""
    settings = JobSettings(
        protocol,
        ps=2,
        elements=40_000,
        pause_ms=5,
        environment={"TENSORWIRE_PEER_TIMEOUT_S": str(PEER_TIMEOUT_S)},
    )
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as directory,
        lab_for(settings) as lab,
        Job(settings, Path(directory), lab=lab) as job,
    ):
        for note in lab.notes:
            say(note)
        job.go_on(STEPS_BETWEEN, RECOVERY_TIMEOUT_S)
        say(f"{protocol}, TensorFlow {job.tensorflow}, seed {seed}: {minutes:g} minutes")
        count = for_some_time(job, minutes / 3, chance, TASKS, say)
        before = job.holdings(*SURVIVORS)
        mortal = tuple(name for name in TASKS if name not in SURVIVORS)
        later = for_some_time(job, minutes * 2 / 3, chance, mortal, say)
        after = job.holdings(*SURVIVORS)
        job.stop()
        for name, was in before.items():
            say(f"{name}: {was} became {after[name]}")
        if found := leaks(before, after, later):
            raise TensorwireError("; ".join(found))
        told = job.told
        say(
            f"{count + later} disturbances, {len(told.recoveries)} recoveries of sessions, step "
            f"{told.highest} reached in {told.steps} steps, every one of them right"
        )


@click.command(help=__doc__)
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--protocol", type=click.Choice(["grpc", "grpc++"]), default="grpc++")
def soak(minutes: float, seed: int, protocol: str) -> None:
    begin = time.monotonic()
    run(
        protocol,
        minutes,
        seed,
        lambda line: click.echo(f"{time.monotonic() - begin:7.1f} s  {line}"),
    )


if __name__ == "__main__":
    run_command(soak, "soak")
