"""The leak detection of tests/soak."""

from __future__ import annotations

from harness.survival import Holdings
from soak import soak


def test_what_grows_with_every_disturbance_is_a_leak_and_what_pools_keep_is_none() -> None:
    before = {"ps:1": Holdings(25, 100, 600.0)}
    for after, says in (
        (Holdings(85, 100, 600.0), ["ps:1: 25 descriptors became 85"]),
        (Holdings(25, 160, 600.0), ["ps:1: 100 threads became 160"]),
        (Holdings(25, 100, 720.0), ["ps:1: 600 MB became 720"]),
        (Holdings(27, 110, 630.0), []),
    ):
        assert soak.leaks(before, {"ps:1": after}, disturbances=60) == says
