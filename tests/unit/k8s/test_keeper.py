"""The life of a ps: as long as a Job that decides needs it."""

from __future__ import annotations

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
    answers = [deciders.need_us(jobs) for jobs in seen]
    assert answers == [True] * (len(seen) - 1) + [needed]
