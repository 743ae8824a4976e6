"""Runs random programs on gRPC and on grpc++ while tasks are killed, replaced and frozen.

An epoch has one cluster per protocol. The settings of the grpc++ cluster are drawn from the epoch's
seed. First only programs run; after them no task may hold more resources than before. Then programs
and faults alternate. The seed "7" means an epoch, "7.p12" one of its programs, "7.f3" a fault.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from . import program as programs
from .pair import PEER_TIMEOUT, Fault, Held, Pair
from .program import Program

WARM_UP = 12
"""Number of programs after which a cluster has created its permanent resources."""
CALM = 60
"""Number of further programs before the first fault."""
FAULTS = 12
"""The number of faults of an epoch, each with programs between it and the next."""
BETWEEN = 3
SHRINKING_S = 90.0
PROGRESS_S = 30.0
ALONE = 20
"""The number of runs of a single program."""
TOKEN = "a token of this test, which is no secret"


@dataclass(frozen=True)
class Plan:
    """The size of an epoch."""

    warm_up: int = WARM_UP
    calm: int = CALM
    faults: int = FAULTS
    between: int = BETWEEN


@dataclass
class Tally:
    """Counts of what was done."""

    programs: int = 0
    faults: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcomes of acts on grpc++, by kind."""
    errors: Counter[str] = field(default_factory=Counter)
    """Classes of the errors of steps on grpc++ during faults."""


@dataclass(frozen=True)
class Finding:
    seed: str
    what: tuple[str, ...]
    program: Program | None = None
    """The smallest program with the difference."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}:", *self.what]
        if self.program is not None:
            lines.append(f"program: {json.dumps(self.program.to_json())}")
        return "\n".join([*lines, f"repeat it: make differential SEED={self.seed}"])


def environment_of(epoch: str) -> dict[str, str]:
    """The settings of the tasks on grpc++."""
    draw = random.Random(f"environment of {epoch}")
    chosen = {
        "TENSORWIRE_TRANSPORT": draw.choice(("auto", "auto", "tcp")),
        "TENSORWIRE_CHECKSUM": draw.choice(("0", "0", "1")),
        "TENSORWIRE_REWRITES": draw.choice(("", "tensor_fuse")),
        "TENSORWIRE_POOL_MB": draw.choice(("1024", "1024", "64", "0")),
        "TENSORWIRE_STREAMS": draw.choice(("1", "2", "4")),
        "NETWORK_PS_CORE_NUMBER": draw.choice(("1", "2")),
    }
    if draw.random() < 0.3:
        chosen[PEER_TIMEOUT] = "4"
    if draw.random() < 0.3:
        chosen["TENSORWIRE_TOKEN"] = TOKEN
        chosen["TENSORWIRE_TLS"] = draw.choice(("0", "1"))
    return chosen


def events(epoch: str, plan: Plan) -> Iterator[tuple[str, str]]:
    """The events of an epoch, in order: ("program" or "fault", seed)."""
    kinds = ["program"] * (plan.warm_up + plan.calm)
    kinds += (["fault"] + ["program"] * plan.between) * plan.faults
    for number, kind in enumerate(kinds):
        yield kind, f"{epoch}.{kind[0]}{number}"


class Differential:
    """Runs epochs on pairs of clusters, and collects findings."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.tally = Tally()
        self.findings: list[Finding] = []
        self._began = self._told = time.monotonic()

    def epoch(self, pair: Pair, epoch: str, plan: Plan, deadline: float = math.inf) -> None:
        """Runs an epoch. After `deadline` (time.monotonic()), nothing new is started."""
        before = None
        for number, (kind, seed) in enumerate(events(epoch, plan)):
            if number == plan.warm_up:
                before = pair.held()
            if number == plan.warm_up + plan.calm and before is not None:
                self._leaks(pair, epoch, before)
            if time.monotonic() > deadline:
                break
            self.run(pair, kind, seed)
        if pair.reference_failures:
            self._say(f"gRPC itself failed: {pair.reference_failures}")

    def run(self, pair: Pair, kind: str, seed: str) -> None:
        """Runs a program or a fault."""
        if kind == "program":
            self._compare(pair, programs.drawn(seed))
        else:
            self._disturb(pair, seed)
        self._progress()

    def _progress(self) -> None:
        if (now := time.monotonic()) - self._told > PROGRESS_S:
            self._told = now
            rate = self.tally.programs / (now - self._began)
            self._say(
                f"{self.tally.programs} programs, {rate:.2f} a second, {self.tally.faults} faults, "
                f"{len(self.findings)} findings"
            )

    def _compare(self, pair: Pair, program: Program) -> None:
        self.tally.programs += 1
        self.tally.acts.update(act.kind for act in program.acts)
        what = pair.differences(program)
        self.tally.outcomes.update(outcome[0] for outcome in pair.last_outcomes)
        if what:
            self._find(program.seed, what, self._shrunk(pair, program))

    def _disturb(self, pair: Pair, seed: str) -> None:
        self.tally.faults += 1
        program = programs.drawn(seed, endured=True)
        draw = random.Random(f"fault of {seed}")
        fault = Fault.drawn(draw, program.servers, pair.peer_timeout_s)
        what = pair.endure(program, fault)
        self.tally.errors.update(list(pair.last_errors.get("grpc++", {}).get("a step", {})))
        classes = {
            protocol: {where: list(each) for where, each in errors.items() if each}
            for protocol, errors in pair.last_errors.items()
        }
        self._say(f"{seed}: {fault}, {program.mode}: {classes}")
        if what:
            self._find(seed, [f"{fault}:", *what], None)

    def _leaks(self, pair: Pair, epoch: str, before: Held) -> None:
        if what := pair.leaks(before):
            self._find(epoch, what, None)

    def _find(self, seed: str, what: list[str], program: Program | None) -> None:
        self.findings.append(Finding(seed, tuple(what), program))
        self._say(f"FINDING {self.findings[-1]}")

    def _shrunk(self, pair: Pair, program: Program) -> Program:
        """The smallest program that still differs, within the available time."""
        deadline = time.monotonic() + SHRINKING_S
        return shrunk(
            program,
            lambda each: bool(pair.differences(each)),
            lambda: time.monotonic() < deadline,
        )


def shrunk(
    program: Program, differs: Callable[[Program], bool], goes_on: Callable[[], bool]
) -> Program:
    """A smaller program that still `differs`, found by removing one part at a time."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in programs.smaller(program):
            if not goes_on():
                return program
            if differs(candidate):
                program, smaller = candidate, True
                break
    return program
