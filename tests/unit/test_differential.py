"""The verdicts of tests/differential, and its generation and reduction of programs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import tensorflow as tf

from differential import program as programs
from differential import tensors, verdict
from differential.differential import Plan, events, shrunk
from differential.program import Act, Errors, Program
from harness.survival import Holdings

VALUE = ["value", ["int32[1] aa"]]
OTHER = ["value", ["int32[1] bb"]]
NOT_FOUND = ["error", "NotFoundError", "a"]
CANCELLED = ["error", "CancelledError", ""]
SEEDS = [f"unit.p{number}" for number in range(200)]


def test_a_seed_always_gives_the_same_program_and_others_give_others() -> None:
    drawn = [programs.drawn(seed) for seed in SEEDS]
    assert drawn == [programs.drawn(seed) for seed in SEEDS]
    assert len({(each.nodes, each.acts) for each in drawn}) == len(drawn)


def test_what_is_made_from_a_dead_tensor_is_dead() -> None:
    with tf.Graph().as_default():
        data = tf.compat.v1.placeholder(tf.float16, [2])
        dead = tf.raw_ops.Switch(data=data, pred=True)[0]
        made = tensors.mixed([dead, tf.constant([1, 2])], tf.as_dtype("float32"), 40)
        needed, left = set(), [made.op]
        while left:
            if (operation := left.pop()) not in needed:
                needed.add(operation)
                left += [each.op for each in operation.inputs]
    assert dead.op in needed


def test_a_program_survives_its_json() -> None:
    for seed in SEEDS:
        program = programs.drawn(seed)
        assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program


def test_programs_have_everything_that_is_compared() -> None:
    drawn = [programs.drawn(seed) for seed in SEEDS]
    assert {each.mode for each in drawn} == {"session", "function", "eager"}
    assert {node.error for each in drawn for node in each.nodes if node.kind == "error"} == set(
        programs.ERRORS
    )
    assert {node.kind for each in drawn for node in each.nodes} >= {
        "branch", "dead", "cond", "loop", "list", "call",
        "variable", "counter", "queue", "reference", "handoff", "exclusive", "array",
    }  # fmt: skip
    assert {act.kind for each in drawn for act in each.acts} == {
        "run", "partial", "together", "deadline", "cancel", "stuck deadline", "stuck cancel"
    }  # fmt: skip
    assert (
        {bool(each.rewrites) for each in drawn}
        == {each.control_flow_v2 for each in drawn}
        == {True, False}
    )


def test_steps_that_are_repeated_at_will_remember_nothing_and_do_not_fail() -> None:
    for seed in SEEDS:
        program = programs.drawn(seed, endured=True)
        assert program.mode != "eager"
        assert program.servers
        assert not {node.kind for node in program.nodes} & {*programs.STATEFUL, "error"}


@pytest.mark.parametrize(
    ("kind", "reference", "found"),
    [
        ("run", VALUE, OTHER),
        ("run", VALUE, ["error", "UnavailableError", "lost"]),
        ("run", ["error", "NotFoundError", "a"], ["error", "NotFoundError", "b"]),
        ("run", ["error", "NotFoundError", "a"], ["error", "AbortedError", "a"]),
        ("together", ["all", VALUE, VALUE], ["all", VALUE, OTHER]),
        ("deadline", ["chance", VALUE, ["as calm"], VALUE], ["chance", OTHER, ["as calm"], OTHER]),
        ("deadline", ["chance", VALUE, ["as calm"], VALUE], ["chance", VALUE, OTHER, VALUE]),
        ("deadline", ["chance", VALUE, ["as calm"], VALUE], ["chance", VALUE, ["as calm"], OTHER]),
        (
            "cancel",
            ["chance", VALUE, ["as calm"], VALUE],
            ["chance", VALUE, ["error", "InternalError", ""], VALUE],
        ),
        (
            "deadline",
            ["chance", VALUE, ["as calm"], VALUE],
            ["chance", VALUE, CANCELLED, VALUE],
        ),
        (
            "cancel",
            ["chance", NOT_FOUND, ["as calm"], NOT_FOUND],
            ["chance", NOT_FOUND, ["error", "InternalError", "a"], NOT_FOUND],
        ),
        ("stuck deadline", ["error", "DeadlineExceededError", ""], ["error", "AbortedError", ""]),
        ("stuck cancel", ["error", "CancelledError", ""], VALUE),
    ],
)
def test_what_grpc_does_not_do_is_a_difference(kind: str, reference: Any, found: Any) -> None:
    assert verdict.difference(Act(kind, (1,)), [reference], found)


@pytest.mark.parametrize(
    ("kind", "reference", "found"),
    [
        ("run", VALUE, VALUE),
        (
            "cancel",
            ["chance", VALUE, ["as calm"], VALUE],
            ["chance", VALUE, CANCELLED, VALUE],
        ),
        (
            "deadline",
            ["chance", NOT_FOUND, ["as calm"], NOT_FOUND],
            ["chance", NOT_FOUND, CANCELLED, NOT_FOUND],
        ),
        (
            "cancel",
            ["chance", NOT_FOUND, ["as calm"], NOT_FOUND],
            ["chance", NOT_FOUND, ["error", "NotFoundError", "a\nand more"], NOT_FOUND],
        ),
        (
            "stuck deadline",
            ["error", "DeadlineExceededError", "a"],
            ["error", "DeadlineExceededError", "b"],
        ),
    ],
)
def test_what_chance_decides_is_none(kind: str, reference: Any, found: Any) -> None:
    assert verdict.difference(Act(kind, (1,)), [reference], found) == ""


def test_what_grpc_does_once_in_several_runs_is_none() -> None:
    errors = [["error", name, ""] for name in ("NotFoundError", "InvalidArgumentError")]
    together = Act("together", (1, 2))
    assert verdict.difference(Act("run", (1,)), errors, errors[1]) == ""
    assert (
        verdict.difference(
            together, [["all", *errors], ["all", *errors[::-1]]], ["all", errors[0], errors[0]]
        )
        == ""
    )
    assert verdict.difference(together, [["all", *errors]], ["all", VALUE, errors[1]])


def test_an_error_says_what_grpc_always_says_and_nothing_that_it_never_says() -> None:
    def differs(found: str) -> bool:
        errors = [["error", "NotFoundError", words] for words in ("root\nothers", "root\nlate")]
        return bool(verdict.difference(Act("run", (1,)), errors, ["error", "NotFoundError", found]))

    assert not differs("root\nothers\nlate")
    assert not differs("root")
    assert differs("others")
    assert differs("root\nsomething else")


@pytest.mark.parametrize(
    ("errors", "reference", "found", "differs"),
    [
        (Errors.ONE, NOT_FOUND, CANCELLED, True),
        (Errors.ONE_OR_CANCELLED, NOT_FOUND, CANCELLED, False),
        (Errors.ONE_OR_CANCELLED, CANCELLED, NOT_FOUND, False),
        (Errors.ONE_OR_CANCELLED, NOT_FOUND, ["error", "NotFoundError", "b"], True),
        (Errors.ONE_OR_CANCELLED, NOT_FOUND, ["error", "AbortedError", "a"], True),
        (Errors.ONE_OR_CANCELLED, VALUE, CANCELLED, True),
        (Errors.ANY, NOT_FOUND, ["error", "AbortedError", "b"], False),
        (Errors.ANY, VALUE, NOT_FOUND, True),
        (Errors.ANY, NOT_FOUND, VALUE, True),
    ],
)
def test_which_error_a_step_ends_with_may_be_chance(
    errors: Errors, reference: Any, found: Any, differs: bool
) -> None:
    assert bool(verdict.difference(Act("run", (1,)), [reference], found, errors)) == differs


def test_chance_decides_which_error_where_several_operations_fail() -> None:
    drawn = [programs.drawn(seed) for seed in SEEDS]
    assert {each.errors for each in drawn} == set(Errors)
    fails = [each for each in drawn if any(node.kind == "error" for node in each.nodes)]
    one = next(each for each in fails if each.errors is Errors.ONE)
    assert dataclasses.replace(one, mode="function").errors is Errors.ONE_OR_CANCELLED
    assert dataclasses.replace(one, nodes=one.nodes * 2).errors is Errors.ANY


def test_after_a_fault_steps_must_be_right_again() -> None:
    good = {"right": 9, "wrong": [], "errors": {}, "recovered": True}
    late = {"DeadlineExceededError": "late"}
    unavailable = {"a step": {"UnavailableError": "lost"}}
    assert not verdict.after_fault("frozen", good)
    assert not verdict.after_fault("killed", {**good, "errors": unavailable})
    assert not verdict.after_fault("killed", {**good, "errors": {"beginning anew": late}})
    assert verdict.after_fault("killed", {**good, "errors": {"a step": late}})
    assert verdict.after_fault("frozen", {**good, "errors": unavailable})
    assert verdict.after_fault("killed", {**good, "errors": {"a step": {"DataLossError": "what"}}})
    assert verdict.after_fault("killed", {**good, "wrong": [OTHER]})
    assert verdict.after_fault("killed", {**good, "recovered": False})


def test_what_grows_more_than_on_grpc_is_a_leak() -> None:
    before = {"ps:0": Holdings(25, 100, 600.0)}
    grown = {"ps:0": Holdings(25, 100, 1200.0)}
    assert verdict.leaks(before, grown, before, before) == [
        "ps:0: resident_mb grew by 600 MB, by 0 MB on gRPC"
    ]
    assert verdict.leaks(before, grown, before, grown) == []
    assert verdict.leaks(before, {"ps:0": Holdings(50, 100, 600.0)}, before, before)
    assert verdict.leaks(before, {"ps:0": Holdings(25, 150, 600.0)}, before, before)
    unused, used = ({"ps:0": {"pool": {"used_bytes": size}}} for size in (0, 30_000_000))
    assert verdict.pool_leaks(unused, used, before, before)
    assert verdict.pool_leaks(unused, used, before, grown) == []


def test_a_program_shrinks_to_what_makes_it_differ() -> None:
    def differs(program: Program) -> bool:
        wanted = {index for each in program.wanted for index in each}
        return any(program.nodes[index].kind == "branch" for index in wanted)

    program = next(each for seed in SEEDS if differs(each := programs.drawn(seed)))
    smallest = shrunk(program, differs, lambda: True)
    assert differs(smallest)
    assert len(smallest.acts) == 1
    assert sorted(node.kind for node in smallest.nodes) == ["branch", "source"]


def test_shrinking_ends_when_its_time_is_up() -> None:
    program = programs.drawn(SEEDS[0])
    assert shrunk(program, lambda _: True, lambda: False) == program


def test_each_event_of_an_epoch_has_a_seed_of_its_own() -> None:
    seeds = [seed for _, seed in events("7", Plan())]
    assert len(set(seeds)) == len(seeds)
    assert {kind for kind, _ in events("7", Plan())} == {"program", "fault"}
