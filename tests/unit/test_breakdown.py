"""The breakdown of a step: pure arithmetic on intervals and counts."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.metrics.breakdown import StepTrace, Waits, break_down, union

NOTHING = Waits(0, 0, 0)
S = 1e6


def parts(trace: StepTrace, after: Waits = NOTHING, seconds: float = 10.0) -> tuple[float, ...]:
    """Input, compute, ps, wire and rest of a step that begins at 100 s, in seconds."""
    found = break_down(7, 100 * S, (100 + seconds) * S, trace, NOTHING, after)
    assert found.step == 7
    assert found.step_s == seconds
    return astuple(found)[2:]


def test_a_union_counts_what_overlaps_once_and_is_cut_to_the_step() -> None:
    assert union([(5, 7), (1, 3), (2, 4), (4, 4.5), (9, 20)], [(2, 10)]) == [
        (2, 4.5),
        (5, 7),
        (9, 10),
    ]
    assert union([], [(0, 1)]) == []


def test_input_is_what_passes_while_nothing_is_computed() -> None:
    trace = StepTrace(compute=[(103 * S, 105 * S), (104 * S, 106 * S)], input=[(101 * S, 104 * S)])
    assert parts(trace) == (2.0, 3.0, 0.0, 0.0, 5.0)


def test_waiting_is_split_as_the_recvs_saw_it() -> None:
    # Three parallel Recvs waited 6 s for the ps and 2 s for the wire, during 4 s of the step.
    waits = Waits(int(6 * S), int(2 * S), int(4 * S))
    assert parts(StepTrace(), waits) == (0.0, 0.0, 3.0, 1.0, 6.0)


def test_waiting_behind_own_work_costs_nothing() -> None:
    trace = StepTrace(compute=[(100 * S, 109 * S)])
    waits = Waits(0, int(8 * S), int(8 * S))
    assert parts(trace, waits) == (0.0, 9.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize("clock_s", [0.0, 4000.0, -4000.0])
def test_a_ps_that_works_on_when_this_task_has_done_is_waited_for(clock_s: float) -> None:
    """For any offset of the ps's clock."""
    trace = StepTrace(
        compute=[(100 * S, 104 * S)],
        others={"ps": [((100 + clock_s) * S, (110 + clock_s) * S)], "idle": []},
    )
    assert parts(trace) == pytest.approx((0.0, 4.0, 6.0, 0.0, 0.0))


interval = st.tuples(st.floats(0, 200 * S), st.floats(0, 30 * S)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)
intervals = st.lists(interval, max_size=8)
count = st.integers(0, int(50 * S))


@given(intervals, intervals, intervals, count, count, count)
def test_the_parts_are_never_negative_and_add_up(
    compute: list[tuple[float, float]],
    given_input: list[tuple[float, float]],
    other: list[tuple[float, float]],
    not_ready: int,
    wire: int,
    waiting: int,
) -> None:
    found = parts(StepTrace(compute, given_input, {"ps": other}), Waits(not_ready, wire, waiting))
    assert all(part >= -1e-9 for part in found)
    assert sum(found) == pytest.approx(10.0)
