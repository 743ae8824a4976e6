"""The turns of a training run, and the sentences about its results."""

from __future__ import annotations

import dataclasses

import pytest

from tensorwire.bench.experiments.train import Train, TrainResult, verdicts
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.record import Ratio, Record
from tensorwire.errors import UsageError


@pytest.mark.parametrize(("steps", "workers", "rounds"), [(2400, 2, 8), (7, 2, 8), (100, 3, 4)])
def test_turns_take_all_steps_that_workers_can_share(steps: int, workers: int, rounds: int) -> None:
    turns = Train(steps=steps, workers=workers, rounds=rounds).turns()

    assert sum(turns) == steps // workers
    assert 2 <= len(turns) <= rounds + 1
    assert min(turns) >= 1
    assert len(set(turns[1:])) == 1  # measured turns are equally long
    assert turns[0] >= turns[1]  # the remainder is warm-up


def test_too_few_steps_for_a_measured_turn_are_refused() -> None:
    with pytest.raises(UsageError, match="--steps must be at least 6"):
        Train(steps=5, workers=3)


def result(protocol: str, steps_per_s: float, auc: float) -> TrainResult:
    return TrainResult(
        protocol=protocol,
        tensor_fuse=False,
        model="flights",
        steps=100,
        steps_per_s=steps_per_s,
        examples_per_s=steps_per_s * 512,
        auc=auc,
        rpcs_per_step=None,
        wire_mb_per_step=None,
    )


def test_verdict_says_how_many_times_as_fast_and_both_aucs() -> None:
    results = [result("grpc", 40.0, 0.6604), result("grpc++", 90.0, 0.6611)]

    (sentence,) = verdicts(results, {"grpc++/grpc": Ratio(2.25, (2.1, 2.4))})

    assert sentence.startswith("grpc++ trains 2.25 times (2.10 to 2.40) as fast as grpc,")
    assert sentence.endswith("AUC of 0.6611 against 0.6604.")


def test_verdict_of_a_fused_side_says_how_many_messages_it_saves() -> None:
    grpc = dataclasses.replace(result("grpc", 40.0, 0.66), rpcs_per_step=400.0)
    single = dataclasses.replace(result("grpc++", 90.0, 0.66), rpcs_per_step=400.0)
    fused = dataclasses.replace(single, tensor_fuse=True, rpcs_per_step=100.0)
    ratio = Ratio(2.25, (2.1, 2.4))
    ratios = {"grpc++/grpc": ratio, "grpc++ fused/grpc": ratio, "grpc++ fused/grpc++": ratio}

    first, second = verdicts([grpc, single, fused], ratios)

    assert "messages" not in first
    assert second.startswith("grpc++ fused trains")
    assert "75% fewer messages a step" in second


def test_one_protocol_has_no_verdict() -> None:
    assert verdicts([result("grpc", 40.0, 0.66)], {}) == []


def test_table_has_a_row_a_protocol_and_admits_what_was_not_measured() -> None:
    results = [result("grpc", 40.0, 0.66), result("grpc++", 90.0, 0.66)]
    table = showing.section(Record("bench train", "2.21.0", results, {})).tables[0]

    assert [row[4] for row in table.rows] == ["-", "-"]
    assert table.title == "Wide & Deep on flights"


def test_the_title_says_what_trained() -> None:
    trained = dataclasses.replace(result("grpc", 40.0, 0.66), ps=2, workers=3, batch_size=256)
    table = showing.section(Record("demo", "2.21.0", [trained], {})).tables[0]

    assert table.title.endswith(": 2 ps, 3 workers, batches of 256")


def test_more_steps_are_what_a_doubtful_training_needs() -> None:
    doubtful = Record("demo", "2.21.0", [result("grpc", 40.0, 0.66)], {"a/b": Ratio(2, (1, 3))})

    (warning,) = showing.section(doubtful).warnings

    assert "1.00 to 3.00" in warning
    assert "--steps" in warning
