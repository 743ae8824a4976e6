"""Judges whether grpc++'s results of a program, a fault or a long run agree with gRPC's.

Pure functions: the tests of this test are in tests/unit/test_differential.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.survival import Holdings

from .program import Act, Errors

Outcome = Sequence[Any]

# The errors of gRPC for steps whose end races with an interruption.
ENDED: Mapping[str, frozenset[str]] = {
    "deadline": frozenset({"DeadlineExceededError"}),
    # Errors of the client and of the master for a closed session.
    "cancel": frozenset(
        {"CancelledError", "AbortedError", "RuntimeError", "FailedPreconditionError"}
    ),
}
# Errors that steps may have during a fault. A step that exceeds its deadline waited for a task that
# will never answer.
_LOST = frozenset({"UnavailableError", "AbortedError", "CancelledError"})
# Errors of a server that replaced the one that knew the session or the context.
_UNKNOWN = frozenset({"InvalidArgumentError", "NotFoundError", "FailedPreconditionError"})
AFTER_FAULT: Mapping[str, frozenset[str]] = {
    "killed": _LOST | _UNKNOWN,
    "replaced": _LOST | _UNKNOWN,
    "frozen": frozenset(),
    "silent": _LOST,
}
# A session starts when all servers are up; a master does not report that it still waits.
BEGINNING = frozenset({"DeadlineExceededError"})

# Allowed growth of a task's holdings, beyond the growth on gRPC: connections that are opened on
# demand, threads of pools, and memory that the allocator keeps.
MORE_DESCRIPTORS = 3 * 4 * 2
"""Connections to and from each of three tasks, with four streams."""
MORE_THREADS = 24
MORE_MB = 80.0
MORE_POOL_BYTES = 16e6


def difference(
    act: Act, references: Sequence[Outcome], found: Outcome, errors: Errors = Errors.ONE
) -> str:
    """A description of how the outcome of an act differs from all outcomes on gRPC, or nothing."""
    if found[0] == "all":
        pairs = zip(*(each[1:] for each in references if each[0] == "all"), strict=True)
        parts = [_plain(seen, one, errors) for seen, one in zip(pairs, found[1:], strict=False)]
        return next(filter(None, parts), "") if parts else _plain(references, found, errors)
    kind = act.kind.removeprefix("stuck ")
    if act.kind != kind and found[0] == "error":
        allowed = ENDED[kind] | {each[1] for each in references if each[0] == "error"}
        return "" if found[1] in allowed else f"{found[1]}, not {_any_of(allowed)}"
    if found[0] == "chance":
        _, calm, ended, later = found
        calm_references = [each[1] for each in references if each[0] == "chance"]
        if words := _plain(calm_references, calm, errors):
            return words
        if later != calm and not (later[0] == calm[0] == "error"):
            return f"after it {_short(later)}, before it {_short(calm)}"
        # If a step fails anyway, gRPC may also report its error with another message, or a
        # cancelled dequeue first.
        own = {calm[1], "CancelledError"} if calm[0] == "error" else set()
        allowed = ENDED[kind] | own
        if ended == ["as calm"] or (ended[0] == "error" and ended[1] in allowed):
            return ""
        return f"{_short(ended)}, neither as without it nor {_any_of(allowed)}"
    return _plain(references, found, errors)


def _plain(references: Sequence[Outcome], found: Outcome, errors: Errors) -> str:
    if any(found == each for each in references) or _same_error(references, found, errors):
        return ""
    return f"{_short(found)}, not {' or '.join(sorted({_short(each) for each in references}))}"


def _same_error(references: Sequence[Outcome], found: Outcome, errors: Errors) -> bool:
    """Whether an error contains all that gRPC always reports, and nothing that it never does.

    If gRPC's error is random, any of its errors is accepted.
    """
    failed = [each for each in references if each[0] == "error"]
    if found[0] != "error" or not failed:
        return False
    if errors is Errors.ANY:
        return True
    if errors is Errors.ONE_OR_CANCELLED:
        failed = [each for each in failed if each[1] != "CancelledError"]
        if found[1] == "CancelledError" or not failed:
            return True
    words = [set(each[2].splitlines()) for each in failed if each[1] == found[1]]
    own = set(found[2].splitlines())
    return bool(words) and set.intersection(*words) <= own <= set.union(*words)


def after_fault(kind: str, told: Mapping[str, Any]) -> list[str]:
    """The defects of steps that ran during a fault of this kind."""
    wrong = [f"a step was {_short(each)}" for each in told["wrong"][:3]]
    for where, errors in told["errors"].items():
        waits = BEGINNING if where != "a step" and AFTER_FAULT[kind] else frozenset()
        wrong += [
            f"{where} fails with {code}: {words[-400:]}"
            for code, words in errors.items()
            if code not in AFTER_FAULT[kind] | waits
        ]
    if not told["recovered"]:
        wrong.append(f"steps are not right again: {told['right']} were; {told['errors']}")
    return wrong


def leaks(
    before: Mapping[str, Holdings],
    after: Mapping[str, Holdings],
    reference_before: Mapping[str, Holdings],
    reference_after: Mapping[str, Holdings],
) -> list[str]:
    """The resources whose holdings grew in tasks, and grew less on gRPC."""
    found = []
    for name, was in before.items():
        now = after[name]
        for what, unit, more in (
            ("descriptors", "", MORE_DESCRIPTORS),
            ("threads", "", MORE_THREADS),
            ("resident_mb", " MB", MORE_MB),
        ):
            grown = getattr(now, what) - getattr(was, what)
            on_grpc = getattr(reference_after[name], what) - getattr(reference_before[name], what)
            if grown > max(0, on_grpc) * 1.5 + more:
                found.append(
                    f"{name}: {what} grew by {grown:.0f}{unit}, by {on_grpc:.0f}{unit} on gRPC"
                )
    return found


def pool_leaks(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    reference_before: Mapping[str, Holdings],
    reference_after: Mapping[str, Holdings],
) -> list[str]:
    """Memory of large tensors that is still in use although no step runs.

    What TensorFlow keeps on gRPC, too, is none: the variables and queues of functions.
    """
    found = []
    for name, stats in after.items():
        was, now = (
            float(each.get("pool", {}).get("used_bytes", 0)) for each in (before[name], stats)
        )
        kept = reference_after[name].resident_mb - reference_before[name].resident_mb
        if now > was + MORE_POOL_BYTES + max(0.0, kept) * 1e6:
            found.append(f"{name}: {was / 1e6:.0f} MB of the pool were used, now {now / 1e6:.0f}")
    return found


def _short(outcome: Outcome) -> str:
    text = str(list(outcome))
    return text if len(text) < 600 else f"{text[:600]}…"


def _any_of(words: frozenset[str]) -> str:
    return " or ".join(sorted(words))
