"""Tables of the effects of disturbances on jobs, for both protocols."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.disturbances import Survival
from tensorwire.report.section import Table


def tables(survivals: Sequence[Survival], protocols: Sequence[str]) -> list[Table]:
    """Two tables: recovery from disturbances that stopped steps, and step rates for all others."""
    stopped = [each for each in survivals if each.steps_per_s is None]
    slowed = [each for each in survivals if each.steps_per_s is not None]
    recovery = Table(
        title="Recovery",
        columns=[
            "fault",
            *(f"on {protocol}" for protocol in protocols),
            "data lost",
            *(f"recovery, s: {protocol}" for protocol in protocols),
            *(f"steps again: {protocol}" for protocol in protocols),
        ],
        groups=[
            [
                [
                    name,
                    *(_what_happens(each) for each in sides),
                    "none",
                    *(f"{each.recovery_s:.1f}" for each in sides),
                    *(str(each.steps_again) for each in sides),
                ]
                for name, sides in _by_name(stopped)
            ]
        ],
        text_columns=2 + len(protocols),
    )
    rates = Table(
        title="Meanwhile",
        columns=["the ps's link", *(f"steps/s: {protocol}" for protocol in protocols)],
        groups=[
            [
                [name, *(f"{each.steps_per_s:.1f}" for each in sides)]
                for name, sides in _by_name(slowed)
            ]
        ],
    )
    return [table for table in (recovery, rates) if table.rows]


def _by_name(survivals: Iterable[Survival]) -> list[tuple[str, list[Survival]]]:
    found: dict[str, list[Survival]] = {}
    for each in survivals:
        found.setdefault(each.disturbance, []).append(each)
    return list(found.items())


def _what_happens(survival: Survival) -> str:
    if survival.failure:
        return f"`{_words(survival.failure)}`; the training ends"
    if survival.errors:
        said = " or ".join(sorted({f"`{_words(error)}`" for error in survival.errors}))
        return f"{said}; the session starts anew"
    if survival.steps_again:
        return "goes on from the checkpoint"
    return "waits, goes on"


def _words(error: str) -> str:
    """The error without the names and addresses of tasks."""
    quoted = re.search(r'grpc_message:"([^"]+)"', error)
    words = re.split(r"\(\d[\d.:]+\) |: |; |recvmsg:", quoted[1] if quoted else error)[-1]
    return re.sub(r"\d{6,}", "…", words).replace("  ", " ")
