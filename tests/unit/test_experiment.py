"""The turns of sides, and the record of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tensorwire.bench.frame.experiment import Case, Variant, measure
from tensorwire.bench.frame.record import Metric, Record, Result
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.tasks import Unwatched
from tensorwire.errors import TensorwireError
from tensorwire.report.section import Section


@dataclass(frozen=True)
class SleepResult(Result):
    """The result of one side in one case."""

    commands = ("sleep",)

    side: str
    case: str
    steps: int

    @property
    def metric(self) -> Metric:
        return Metric(self.case, self.side, self.steps, "steps")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        return Section("Sleep")


class Sleeper(Variant[float, SleepResult]):
    """Reports step times of `seconds` times the case's number, and records its calls."""

    tensorflow = "2.21.0"

    def __init__(self, name: str, seconds: float, asked: list[str]) -> None:
        self.name = name
        self._seconds = seconds
        self._asked = asked

    def __enter__(self) -> Sleeper:
        self._asked.append(f"start {self.name}")
        return self

    def __exit__(self, *exception: Any) -> None:
        self._asked.append(f"end {self.name}")

    def warm_up(self, what: float) -> None:
        self._asked.append(f"warm {self.name}")

    def block(self, what: float, steps: int | None) -> Sequence[float]:
        self._asked.append(f"{self.name} {steps}")
        return [self._seconds * what] * (steps or 1)

    def verify(self, what: float) -> None:
        self._asked.append(f"verify {self.name}")

    def result(self, case: Case[float], rounds: Rounds) -> SleepResult:
        return SleepResult(self.name, case.name, sum(map(len, rounds)))


class Ceiling(Sleeper):
    """Takes part only in cases with the number 2, and has no result row."""

    def takes_part(self, what: float) -> bool:
        return what == 2.0

    def result(self, case: Case[float], rounds: Rounds) -> None:  # type: ignore[override]
        return None

    def baseline_mb_per_s(self, case: Case[float], rounds: Rounds) -> float:
        return 1.0 / rounds[0][0]


def measured(
    *sides: Variant[float, SleepResult], cases: Sequence[Case[float]], **options: Any
) -> Record[SleepResult]:
    pairs = [("fast", "slow"), ("fast", "ceiling")]
    return measure("sleep", sides, cases, Unwatched(), pairs=pairs, **options)


def test_all_sides_start_before_the_first_block_and_then_take_turns() -> None:
    asked: list[str] = []
    sides = (Sleeper("slow", 4.0, asked), Sleeper("fast", 1.0, asked))

    record = measured(*sides, cases=[Case("one", 1.0, [2, 1])])

    assert asked == [
        *("start slow", "start fast", "warm slow", "warm fast"),
        *("slow 2", "fast 2", "slow 1", "fast 1"),
        *("verify slow", "verify fast", "end fast", "end slow"),
    ]
    assert record.results == [SleepResult("slow", "one", 3), SleepResult("fast", "one", 3)]
    assert {name: ratio.value for name, ratio in record.ratios.items()} == {"fast/slow": 4.0}
    assert record.tensorflow == "2.21.0"


def test_back_and_forth_the_second_round_begins_with_the_side_that_was_last() -> None:
    asked: list[str] = []
    sides = (Sleeper("slow", 4.0, asked), Sleeper("fast", 1.0, asked))

    measured(*sides, cases=[Case("one", 1.0, [1, 1])], back_and_forth=True)

    assert asked[4:8] == ["slow 1", "fast 1", "fast 1", "slow 1"]


def test_cases_that_take_turns_have_a_block_each_in_every_round() -> None:
    asked: list[str] = []
    sides = (Sleeper("slow", 4.0, asked), Sleeper("fast", 1.0, asked))
    cases = [Case("one", 1.0, [1, 1]), Case("two", 2.0, [2, 2])]

    record = measured(*sides, cases=cases, cases_take_turns=True)

    a_round = ["slow 1", "fast 1", "slow 2", "fast 2"]
    assert [each for each in asked if each[-1].isdigit()] == [*a_round, *a_round]
    assert list(record.ratios) == ["fast/slow one", "fast/slow two"]


def test_a_ceiling_is_compared_in_the_cases_in_which_it_takes_part() -> None:
    sides = (Sleeper("fast", 1.0, []), Ceiling("ceiling", 0.5, []))

    record = measured(*sides, cases=[Case("one", 1.0, [1]), Case("two", 2.0, [1])])

    assert [result.case for result in record.results] == ["one", "two"]
    assert record.baselines == {"ceiling": 1.0}
    assert list(record.ratios) == ["fast/ceiling two"]


def test_the_sides_end_when_one_of_them_fails() -> None:
    class Failing(Sleeper):
        def block(self, what: float, steps: int | None) -> Sequence[float]:
            raise TensorwireError("the ps went")

    asked: list[str] = []
    with pytest.raises(TensorwireError, match="the ps went"):
        measured(
            Sleeper("slow", 4.0, asked),
            Failing("fast", 1.0, asked),
            cases=[Case("one", 1.0, [1])],
        )
    assert asked[-2:] == ["end fast", "end slow"]


def test_a_record_is_read_as_the_results_of_its_command() -> None:
    record = measured(Sleeper("fast", 1.0, []), cases=[Case("one", 1.0, [1])])

    assert Record.from_json(record.to_json()).results == record.results
