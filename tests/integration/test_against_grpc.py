"""Compares random programs, cancellations and faults on both protocols: a small, fixed set."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from differential import program as programs
from differential.differential import Differential, Plan, shrunk
from differential.pair import PEER_TIMEOUT, Pair
from differential.program import Act, Program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.newest,  # `make differential-2.15.1` takes longer
    pytest.mark.timeout(600, method="thread", func_only=True),
]

EPOCH = "test"
PLAN = Plan(warm_up=10, calm=30, faults=4, between=2)


@pytest.fixture(scope="module")
def pair(plugin: None) -> Iterator[Pair]:
    """A pair of clusters with tensor fusion on grpc++ only.

    A task counts as lost after 10 s of silence, because on a busy machine it may get no CPU for
    seconds.
    """
    with Pair({"TENSORWIRE_REWRITES": "tensor_fuse", PEER_TIMEOUT: "10"}) as clusters:
        yield clusters


def test_another_result_is_found_and_its_program_made_small(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes grpc++ take the wrong side of each branch, and expects a small program."""
    outcomes = pair.found.outcomes

    def other_branches(program: Program) -> Any:
        nodes = tuple(
            dataclasses.replace(node, salt=node.salt + 1) if node.kind == "branch" else node
            for node in program.nodes
        )
        return outcomes(dataclasses.replace(program, nodes=nodes))

    program = next(
        drawn
        for drawn in (programs.drawn(f"a branch {number}") for number in itertools.count())
        if len(drawn.nodes) > 5
        and {node.kind for node in drawn.nodes} <= {"source", "mix", "move"}
        and drawn.nodes[-1].dtype in ("int32", "float32")
        and drawn.nodes[-1].size >= 40
    )
    branch = programs.Node("branch", programs.DEVICES[1:5], "int32", 40, (len(program.nodes) - 1,))
    nodes = (*program.nodes, branch)
    program = dataclasses.replace(
        program,
        mode="session",
        nodes=nodes,
        wanted=((len(nodes) - 1, 0),),
        acts=(Act("run", (1,)),),
    )
    assert not pair.differences(program)
    monkeypatch.setattr(pair.found, "outcomes", other_branches)
    assert pair.differences(program)
    smallest = shrunk(program, lambda each: bool(pair.differences(each)), lambda: True)
    assert sorted(node.kind for node in smallest.nodes) == ["branch", "source"]


def test_programs_and_faults_are_the_same_on_both_protocols(pair: Pair) -> None:
    run = Differential(print)
    run.epoch(pair, EPOCH, PLAN)
    assert not run.findings, "\n".join(map(str, run.findings))
    assert run.tally.programs == PLAN.warm_up + PLAN.calm + PLAN.faults * PLAN.between
    assert run.tally.faults == PLAN.faults
    # The programs had the intended effects.
    assert run.tally.outcomes["value"] > 100
    assert run.tally.outcomes["error"] > 5
    assert not run.tally.outcomes["raised"]
    for figure in ("pushed_tensors", "fused_tensors", "eager_calls"):
        assert sum(stats[figure] for stats in pair.found.stats().values()) > 100, figure
