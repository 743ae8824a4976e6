"""Tables and progress as they reach a terminal, a pipe or a log."""

from __future__ import annotations

import pytest

from tensorwire.bench.record import StepMs, StepsResult, TransferResult
from tensorwire.bench.stats import Ratio
from tensorwire.report import tables
from tensorwire.report.progress import ProgressDisplay

STEP = StepMs(p50=82.14, p90=90.0, min=80.2)


def test_the_transfer_table_shows_each_protocol_and_each_ceiling(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = TransferResult("grpc", False, 100.0, 1, 30, 1217.4, STEP, 1.91)
    tables.show(tables.transfer_table([result], {"tcp": 3812.0}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Tensor transfer, 100 MB")
    row = next(line for line in lines if "grpc" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "grpc",
        "1220",
        "82.1",
        "90",
        "80.2",
        "1.91",
    ]
    assert any("tcp (ceiling)" in line and "3810" in line for line in lines)


def test_the_steps_table_names_case_protocol_and_fusion(capsys: pytest.CaptureFixture[str]) -> None:
    result = StepsResult("grpc++", True, "many", 0.8192, 200, 300, STEP)
    tables.show(tables.steps_table([result]))
    out = capsys.readouterr().out
    assert all(text in out for text in ("many", "grpc++ fused", "200", "82.1"))


def test_a_wide_ratio_is_marked_by_a_note_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ratios = {"grpc++/grpc": Ratio(2.0, 1.2, 2.9), "grpc++/tcp": Ratio(0.9, 0.88, 0.92)}
    notes = tables.spread_notes(ratios)
    assert len(notes) == 1
    tables.show(*tables.ratio_tables(ratios), notes=notes)
    out = capsys.readouterr().out
    assert "2.00" in out and "0.88 - 0.92" in out
    assert any(
        line.startswith("note: grpc++/grpc varied from 1.20 to 2.90") and "--rounds" in line
        for line in out.splitlines()
    )


def test_without_ratios_there_is_no_ratio_table() -> None:
    assert tables.ratio_tables({}) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1230"), (12345678.0, "12300000"), (0.01234, "0.0123"), (0.0, "0"), (90.0, "90")],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert tables.number(value) == text


def test_progress_in_a_log_is_a_line_an_activity_and_nothing_on_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressDisplay("starting", total=10) as progress:
        progress.activity("measuring")
        progress.activity("measuring")
        for _ in range(10):
            progress.advance()
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["starting", "measuring"]
    assert not captured.out


def test_progress_in_a_log_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorwire.report.progress._LINE_EVERY_S", 0.0)
    with ProgressDisplay("measuring", total=10) as progress:
        progress.advance(3)
    assert capsys.readouterr().err.splitlines()[-1] == "measuring (3 of 10)"
