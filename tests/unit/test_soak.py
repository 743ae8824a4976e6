"""The leak detection of tests/soak."""

from __future__ import annotations

import pytest

from harness.survival import Holdings
from soak import soak

BEFORE = {"ps:1": Holdings(25, 100, 600.0)}
DISTURBANCES = 60


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (Holdings(25 + DISTURBANCES, 100, 600.0), "ps:1: 25 descriptors became 85"),
        (Holdings(25, 100 + DISTURBANCES, 600.0), "ps:1: 100 threads became 160"),
        (Holdings(25, 100, 600.0 + 2 * DISTURBANCES), "ps:1: 600 MB became 720"),
    ],
)
def test_what_grows_with_every_disturbance_is_a_leak(after: Holdings, says: str) -> None:
    assert soak.leaks(BEFORE, {"ps:1": after}, DISTURBANCES) == [says]


def test_what_pools_and_allocators_keep_is_none() -> None:
    after = Holdings(27, 110, 630.0)
    assert soak.leaks(BEFORE, {"ps:1": after}, DISTURBANCES) == []
