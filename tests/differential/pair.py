"""A cluster on gRPC and one on grpc++, which run the same programs at the same time."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from harness.survival import Holdings
from tensorwire.owning_context import OwningContext

from . import verdict
from .program import Program
from .side import RECOVERY_S, Hang, Side

FROZEN_S = 1.5
"""The longest time that a task can be frozen without counting as lost."""
PEER_TIMEOUT = "TENSORWIRE_PEER_TIMEOUT_S"
REPEATS = 4
"""How often a difference is repeated, because gRPC may also have several outcomes."""
QUIET_S = 60.0


@dataclass(frozen=True)
class Fault:
    """A fault of a server during steps, and its moment."""

    kind: str
    """"killed": it is replaced after the loss was noticed, or later. "replaced": it is replaced at
    once. "frozen": it is stopped for less than the peer timeout. "silent": for longer.
    """
    task: str
    moment: float
    """Time after the begin of a step, as a share of a step's time."""
    lasts_s: float

    @staticmethod
    def drawn(draw: random.Random, tasks: Sequence[str], peer_timeout_s: float | None) -> Fault:
        """A random fault of a random task. `peer_timeout_s`: the silence after which a task counts
        as lost; None: no "silent" faults.
        """
        kinds = ["killed", "replaced", "replaced", "frozen"]
        kind = draw.choice([*kinds, *(["silent"] * 2 if peer_timeout_s else [])])
        lasts_s = {
            "killed": draw.uniform(0, 3),
            "replaced": 0.0,
            "frozen": draw.uniform(0, FROZEN_S),
            "silent": draw.uniform(1.2, 2) * (peer_timeout_s or 0),
        }[kind]
        return Fault(kind, draw.choice(tasks), draw.uniform(0, 1.5), lasts_s)

    def __str__(self) -> str:
        return f"{self.task} {self.kind} for {self.lasts_s:.1f} s"


@dataclass(frozen=True)
class Held:
    """The resources that the tasks of both sides hold."""

    reference: Mapping[str, Holdings]
    found: Mapping[str, Holdings]
    stats: Mapping[str, Any]


class Pair(OwningContext):
    """A context manager that ends all processes. A side that hangs is restarted."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: for the tasks on grpc++; gRPC always has its defaults."""
        self._environments = {"grpc": {}, "grpc++": dict(environment or {})}
        self._sides: dict[str, Side] = {}
        self.reference_failures = 0
        """How often gRPC did not answer or recover; such cases are not compared."""
        self.last_outcomes: list[Any] = []
        """The outcomes on grpc++ of the last program's acts."""
        self.last_errors: dict[str, dict[str, dict[str, str]]] = {}
        """The errors during the last fault, by protocol: {"a step": {class: message}, ...}."""

    @property
    def peer_timeout_s(self) -> float | None:
        """The silence after which a task on grpc++ counts as lost; None if it was not set."""
        seconds = self._environments["grpc++"].get(PEER_TIMEOUT)
        return None if seconds is None else float(seconds)

    @property
    def reference(self) -> Side:
        return self._sides["grpc"]

    @property
    def found(self) -> Side:
        return self._sides["grpc++"]

    def _open(self, held: contextlib.ExitStack) -> None:
        self._pool = held.enter_context(ThreadPoolExecutor(2))
        held.push(self._end)
        self._renew(*self._environments)

    def _end(self, *exception: Any) -> None:
        while self._sides:
            _, side = self._sides.popitem()
            side.__exit__(*exception)

    def _renew(self, *protocols: str) -> None:
        for protocol in protocols:
            if (old := self._sides.pop(protocol, None)) is not None:
                old.__exit__(None, None, None)
            self._sides[protocol] = Side(protocol, self._environments[protocol]).__enter__()
        for protocol in protocols:
            self._sides[protocol].connect()

    def _both(self, act: Any) -> dict[str, Any]:
        """The result of `act` on each side, or the `Hang` that it raised."""

        def caught(side: Side) -> Any:
            try:
                return act(side)
            except Hang as hang:
                return hang

        futures = {name: self._pool.submit(caught, side) for name, side in self._sides.items()}
        found = {name: future.result() for name, future in futures.items()}
        if hung := [name for name, each in found.items() if isinstance(each, Hang)]:
            self.reference_failures += "grpc" in hung
            self._renew(*hung)
        return found

    def differences(self, program: Program) -> list[str]:
        """The outcomes of grpc++ that gRPC does not have, after repeating differences."""
        references: list[Any] = []
        seen: list[str] = []
        self.last_outcomes = []
        for attempt in range(REPEATS):
            outcomes = self._both(lambda side: side.outcomes(program))
            if isinstance(outcomes["grpc"], Hang):
                return []  # nothing to compare with
            if isinstance(outcomes["grpc++"], Hang):
                return [str(outcomes["grpc++"])]
            references.append(outcomes["grpc"])
            if attempt == 0:
                found = self.last_outcomes = outcomes["grpc++"]
            seen = [
                f"act {number} ({act.kind}): {words}"
                for number, act in enumerate(program.acts)
                if (
                    words := verdict.difference(
                        act, [each[number] for each in references], found[number], program.errors
                    )
                )
            ]
            if not seen:
                return []
        return seen

    def endure(self, program: Program, fault: Fault) -> list[str]:
        """The failures on grpc++ during and after `fault`, while steps of `program` run.

        Empty if gRPC does not do better.
        """

        def act(side: Side) -> Any:
            step_s = side.ask({"endure": program.to_json(), "tag": "endured"})["under_way"]
            time.sleep(min(1.0, step_s * fault.moment))
            if fault.kind in ("killed", "replaced"):
                side.kill(fault.task)
                time.sleep(fault.lasts_s)
                side.begin(fault.task)
            else:
                with side.frozen(fault.task):
                    time.sleep(fault.lasts_s)
            told = side.ask({"enough": RECOVERY_S})
            again = side.ask({"recover": RECOVERY_S})["recovered"]
            return told, again

        outcomes = self._both(act)
        if isinstance(outcomes["grpc++"], Hang):
            return [] if isinstance(outcomes["grpc"], Hang) else [str(outcomes["grpc++"])]
        told, again = outcomes["grpc++"]
        self.last_errors = {
            name: each[0]["errors"] for name, each in outcomes.items() if not isinstance(each, Hang)
        }
        wrong = verdict.after_fault(fault.kind, told)
        if again:
            wrong.append(f"connecting anew: {again}")
        if wrong and not isinstance(outcomes["grpc"], Hang):
            on_grpc = outcomes["grpc"][0]
            wrong = [each for each in wrong if each not in verdict.after_fault(fault.kind, on_grpc)]
        if not told["recovered"] or again:
            self._renew("grpc++")
        if isinstance(outcomes["grpc"], tuple) and (
            not outcomes["grpc"][0]["recovered"] or outcomes["grpc"][1]
        ):
            self.reference_failures += 1
            self._renew("grpc")
        return wrong

    def held(self) -> Held:
        return Held(self.reference.holdings(), self.found.holdings(), self.found.stats())

    def leaks(self, before: Held) -> list[str]:
        """The resources of which the tasks hold more than `before`, when they are idle."""
        deadline = time.monotonic() + QUIET_S
        while True:
            now = self.held()
            found = [
                *verdict.leaks(before.found, now.found, before.reference, now.reference),
                *verdict.pool_leaks(before.stats, now.stats, before.reference, now.reference),
            ]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)
