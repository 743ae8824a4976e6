"""An experiment: sides that take turns in its cases, and the record of their times.

All sides start before the first one is measured, and run as long as the experiment. In each round
of a case every side runs a block of steps, one side after the other. Other load on the machine then
affects all sides equally, so that ratios are valid even if times are not. Cases that are read next
to each other take turns within each round, too.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tensorwire.bench.frame.comparison import by_side_and_case, compare_cases
from tensorwire.bench.frame.contenders import PAIRS
from tensorwire.bench.frame.noise import NoiseWatch
from tensorwire.bench.frame.record import LabDocument, Record, Result
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import Watcher

What = TypeVar("What")
SomeResult = TypeVar("SomeResult", bound=Result)


@dataclass(frozen=True)
class Case(Generic[What]):
    """One case of an experiment, which all sides run in several rounds."""

    name: str
    what: What
    steps: Sequence[int | None]
    """The number of steps of each round; None: as many as fill a round, found in the warm-up."""


class Side(ABC, Generic[What, SomeResult]):
    """One side of a comparison. A context manager, which ends its processes."""

    name: str
    """The side's name in tables and ratios."""
    tensorflow: str | None = None
    """The side's version of TensorFlow, set when it has started."""

    def __enter__(self) -> Any:
        """Starts the side's processes without waiting for them."""
        return self

    def __exit__(self, *exception: Any) -> None:
        """Ends the side's processes."""

    def wait_started(self, watcher: Watcher) -> None:
        """Waits until the side can be measured."""

    def takes_part(self, what: What) -> bool:
        """True if this side is measured in this case."""
        return True

    def warm_up(self, what: What) -> None:
        """Runs steps that do not count."""

    @abstractmethod
    def block(self, what: What, steps: int | None) -> Sequence[float]:
        """Runs this number of steps; returns the seconds of each step, or one mean."""

    def verify(self, what: What) -> None:
        """Raises TensorwireError unless the steps had the right effect."""

    def transport(self) -> str | None:
        """The transport of its tensors so far (`transport_used`); None if it has no tensors."""
        return None

    def result(self, case: Case[What], rounds: Rounds) -> SomeResult | None:
        """The side's result for the record; None if it has none."""
        return None

    def ceiling_mb_per_s(self, case: Case[What], rounds: Rounds) -> float | None:
        """MB/s (10^6 bytes), if the side is a ceiling for the others."""
        return None


def measure(
    command: str,
    sides: Sequence[Side[What, SomeResult]],
    cases: Sequence[Case[What]],
    watcher: Watcher,
    *,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    lab: LabDocument | None = None,
    back_and_forth: bool = False,
    cases_take_turns: bool = False,
) -> Record[SomeResult]:
    """Measures; `watcher.advance` is called once for each round of each case.

    With one case a ratio is called "grpc++/grpc"; with several, "grpc++/grpc tiny" and so on.

    Args:
        pairs: names of sides to compare; the first should be faster.
        lab: the lab's settings for the record.
        back_and_forth: True if the order of sides alternates: A B, B A instead of A B, A B.
        cases_take_turns: True if each round has a block of each case, instead of all rounds of one
            case before the next. The cases then have the same number of rounds.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    noise = NoiseWatch()
    rounds: dict[str, dict[str, list[Sequence[float]]]] = {}
    results: list[SomeResult] = []
    ceilings: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        for side in sides:
            stack.enter_context(side)
        for side in sides:
            side.wait_started(watcher)
        for group in [cases] if cases_take_turns else [[case] for case in cases]:
            prefix = f"{group[0].name}: " if len(group) < len(cases) else ""
            rounds |= _take_turns(group, sides, watcher, prefix, back_and_forth)
        transports = {side.name: used for side in sides if (used := side.transport()) is not None}
        for case in cases:
            for side in sides:
                if side.name not in rounds[case.name]:
                    continue
                of_side = rounds[case.name][side.name]
                if (row := side.result(case, of_side)) is not None:
                    results.append(row)
                if (rate := side.ceiling_mb_per_s(case, of_side)) is not None:
                    ceilings[side.name] = rate
        tensorflow = next((side.tensorflow for side in sides if side.tensorflow), None)
    return Record(
        command=command,
        tensorflow=tensorflow,
        results=results,
        ratios=compare_cases(rounds, pairs),
        ceilings=ceilings,
        transports=transports,
        noise=noise.seen(by_side_and_case(rounds)),
        lab=lab,
    )


def _take_turns(
    cases: Sequence[Case[What]],
    sides: Sequence[Side[What, SomeResult]],
    watcher: Watcher,
    prefix: str,
    back_and_forth: bool,
) -> dict[str, dict[str, list[Sequence[float]]]]:
    """Runs all rounds; returns seconds by case and side. A round runs each case on each side."""
    taking_part = [(case, [s for s in sides if s.takes_part(case.what)]) for case in cases]
    rounds: dict[str, dict[str, list[Sequence[float]]]] = {
        case.name: {side.name: [] for side in of_case} for case, of_case in taking_part
    }
    watcher.activity(f"{prefix}warming up")
    for case, of_case in taking_part:
        for side in of_case:
            side.warm_up(case.what)
    watcher.activity(f"{prefix}measuring")
    for number, steps_of_cases in enumerate(zip(*(case.steps for case in cases), strict=True)):
        for (case, of_case), steps in zip(taking_part, steps_of_cases, strict=True):
            for side in reversed(of_case) if back_and_forth and number % 2 else of_case:
                rounds[case.name][side.name].append(side.block(case.what, steps))
            watcher.advance()
    for case, of_case in taking_part:
        for side in of_case:
            side.verify(case.what)
    return rounds
