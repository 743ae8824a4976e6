"""A ps runs as long as a deciding Job needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tensorwire.k8s.keeper import Deciders


def listed(**conditions: str | None) -> list[dict[str, Any]]:
    return [
        {
            "metadata": {"name": name},
            "status": {"conditions": [{"type": kind, "status": "True"}] if kind else None},
        }
        for name, kind in conditions.items()
    ]


@pytest.mark.parametrize(
    ("seen", "needed"),
    [
        ([listed()], True),
        ([listed(a=None)], True),
        ([listed(a=None, b=None)], True),
        ([listed(a="Complete", b=None)], True),
        ([listed(a="Complete")], True),
        ([listed(a="Complete", b="Complete")], False),
        ([listed(a="Failed", b=None)], False),
        ([listed(a="SuccessCriteriaMet", b=None)], True),
        ([listed(a=None, b=None), listed(b=None)], True),
        ([listed(a=None, b=None), listed(b="Complete")], False),
        ([listed(a=None, b=None), listed()], False),
    ],
)
def test_a_ps_is_needed_until_all_that_decide_have_ended(
    seen: list[list[dict[str, Any]]], needed: bool
) -> None:
    deciders = Deciders(expected=2)
    answers = [deciders.are_running(jobs) for jobs in seen]
    assert answers == [True] * (len(seen) - 1) + [needed]


def test_workers_that_may_come_later_are_not_waited_for() -> None:
    complete, may_come = listed(a="Complete", b=None)
    may_come["spec"] = {"suspend": True}
    assert Deciders(expected=2).are_running([complete, may_come])
    may_come["metadata"]["annotations"] = {"tensorwire/most-tasks": "4"}
    assert not Deciders(expected=2).are_running([complete, may_come])
    may_come["spec"] = {"suspend": False}
    assert Deciders(expected=2).are_running([complete, may_come])


def test_a_keeper_that_is_evicted_has_not_succeeded() -> None:
    """Otherwise its Job would be complete, and the ps would not be restarted."""
    environment = {
        **os.environ,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": "1",
        "POD_NAMESPACE": "default",
    }
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tensorwire.k8s.keeper", "--job", "flights", "--jobs", "1"],
        env=environment,
        stderr=subprocess.PIPE,
    )
    try:
        assert keeper.stderr is not None
        assert b"trying again" in keeper.stderr.readline()
        keeper.terminate()
        assert keeper.wait(30) == 143
    finally:
        keeper.kill()
        keeper.communicate(timeout=30)
