"""Medians, percentiles and ratios: their values, and the direction of ratios."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.frame import statistics


def test_step_ms_is_over_all_steps_of_all_rounds_and_in_milliseconds() -> None:
    step = statistics.step_ms([[0.001, 0.002], [0.003, 0.004, 0.005]])
    assert step.p50 == pytest.approx(3.0)
    assert step.p90 == pytest.approx(4.6)
    assert step.min == pytest.approx(1.0)


def test_step_ms_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        statistics.step_ms([[]])


def test_typical_time_is_the_median_of_the_rounds_medians() -> None:
    assert statistics.typical_s([[1.0, 2.0, 3.0], [10.0], [4.0, 6.0]]) == 5.0


def test_one_slow_round_does_not_move_the_typical_time() -> None:
    assert statistics.typical_s([[1.0] * 9, [1.0] * 9, [100.0] * 9]) == 1.0


def test_speedup_is_above_one_when_the_first_is_faster() -> None:
    fast, slow = [[1.0], [1.0]], [[2.5], [2.5]]
    assert statistics.speedup(fast, slow).value == 2.5
    assert statistics.speedup(slow, fast).value == 0.4


def test_speedup_pairs_the_rounds_for_its_interval() -> None:
    # In the second half, the machine is half as fast for both sides, so every round gives the ratio
    # 2. If rounds were drawn separately for each side, ratios would range from 1 to 4.
    first = [[1.0], [1.0], [1.0], [2.0]]
    second = [[2.0], [2.0], [2.0], [4.0]]
    ratio = statistics.speedup(first, second)
    assert ratio.value == 2.0
    assert ratio.interval == (2.0, 2.0)


def test_the_interval_holds_the_ratio_and_is_wider_where_rounds_disagree() -> None:
    calm = statistics.speedup([[1.0]] * 6, [[2.0], [2.1], [1.9], [2.0], [2.1], [1.9]])
    noisy = statistics.speedup([[1.0]] * 6, [[2.0], [3.0], [1.0], [2.0], [3.0], [1.0]])
    assert calm.interval is not None and noisy.interval is not None
    for ratio, (low, high) in ((calm, calm.interval), (noisy, noisy.interval)):
        assert low <= ratio.value <= high
    assert noisy.interval[1] - noisy.interval[0] > 5 * (calm.interval[1] - calm.interval[0])


def test_the_same_rounds_have_the_same_interval() -> None:
    rounds = [[1.0, 1.3], [1.1], [0.9, 2.0], [1.7]]
    assert statistics.speedup(rounds, rounds[::-1]) == statistics.speedup(rounds, rounds[::-1])


def test_one_round_has_no_interval() -> None:
    assert statistics.speedup([[1.0, 2.0]], [[2.0, 4.0]]).interval is None


def test_scatter_is_the_quartile_distance_of_the_rounds_over_their_median() -> None:
    assert statistics.scatter([[1.0], [2.0, 2.0, 9.0], [3.0], [4.0], [5.0]]) == pytest.approx(2 / 3)


def test_speedup_of_unequal_numbers_of_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 rounds cannot be compared with 1"):
        statistics.speedup([[1.0], [1.0]], [[1.0]])


@given(st.integers(1, 10_000), st.integers(1, 100))
def test_split_gives_every_step_to_a_round_and_no_round_is_empty(iters: int, rounds: int) -> None:
    parts = statistics.split(iters, rounds)
    assert sum(parts) == iters
    assert len(parts) == min(iters, rounds)
    assert min(parts) >= 1
    assert max(parts) - min(parts) <= 1
