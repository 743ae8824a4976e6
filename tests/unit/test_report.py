"""Tables and progress on a terminal, in a pipe and in a log."""

from __future__ import annotations

import dataclasses
import os
import pty
import subprocess
import sys

import pytest

from tensorwire.bench.experiments.steps import StepsResult
from tensorwire.bench.experiments.transfer import TransferResult
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.columns import StepMs
from tensorwire.bench.frame.record import Machine, Noise, Ratio, Record, Result
from tensorwire.report import terminal
from tensorwire.report.progress import ProgressDisplay
from tensorwire.units import number

STEP = StepMs(p50=82.14, p90=90.0, min=80.2)
TRANSFER = Record[Result](
    "bench transfer",
    "2.21.0",
    [
        TransferResult("grpc", False, 100.0, 1, 30, 1217.4, STEP, 1.91),
        TransferResult("grpc++", False, 100.0, 1, 30, 2434.8, STEP, None),
    ],
    {"grpc++/grpc": Ratio(2.0, (1.9, 2.1)), "grpc++/tcp": Ratio(0.9, (0.88, 0.92))},
    host=Machine("EPYC", 2, "6.1"),
    baselines={"tcp": 3812.0},
    noise=Noise(0.25, 2.0, 0.001, {"grpc": 0.05, "tcp": 0.11}),
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_a_transfer_is_a_table_with_each_protocol_and_each_baseline_and_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.show([showing.section(TRANSFER)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Tensor transfer, 100 MB")
    rows = [cells(line) for line in lines if line.startswith("│")]
    assert ["grpc", "1220", "82.1", "90", "80.2", "1.91"] in rows
    assert ["tcp (raw)", "3810", "", "", "", ""] in rows
    assert ["grpc++/grpc", "2.00", "1.90 to 2.10"] in rows
    assert "grpc++ moves 100 MB from worker to ps 2.00 times as fast as grpc." in lines
    assert not any(line.startswith("warning") for line in lines)


def test_the_noise_of_the_machine_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show([showing.section(TRANSFER)])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert "load average 0.2 before, 2.0 after" in line
    assert "0.1% of the CPU time stolen" in line
    assert "grpc 5%, tcp 11%" in line


def test_small_steps_are_a_table_with_case_protocol_and_fusion_and_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = StepsResult("grpc++", True, "many", 0.8192, 200, 300, STEP)
    ratios = {"grpc++ fused/grpc tiny": Ratio(3.0), "grpc++ fused/grpc many": Ratio(8.0)}
    terminal.show([showing.section(Record("bench steps", "2.21.0", [result], ratios))])
    out = capsys.readouterr().out
    assert all(text in out for text in ("many", "grpc++ fused", "200", "82.1"))
    assert "grpc++ fused takes small steps 3.00 (tiny) and 8.00 (many) times as fast" in out


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (Ratio(2.0, (1.2, 2.9)), "the rounds disagree: the ratio may be from 1.20 to 2.90"),
        (Ratio(1.02, (0.97, 1.05)), "the rounds do not show which is faster"),
        (Ratio(2.0), "no confidence interval for grpc++/grpc"),
    ],
)
def test_a_ratio_that_the_rounds_do_not_support_is_warned_of_on_one_line(
    capsys: pytest.CaptureFixture[str], ratio: Ratio, says: str
) -> None:
    terminal.show([showing.section(dataclasses.replace(TRANSFER, ratios={"grpc++/grpc": ratio}))])
    lines = capsys.readouterr().out.splitlines()
    (warning,) = [line for line in lines if line.startswith("warning: ")]
    assert says in warning
    assert "--rounds" in warning or "rounds" in warning


def test_a_ratio_whose_figure_is_off_by_less_than_a_third_is_not_warned_of() -> None:
    ratios = {"grpc++/grpc": Ratio(3.9, (3.4, 4.6))}
    assert showing.section(dataclasses.replace(TRANSFER, ratios=ratios)).warnings == []


@pytest.mark.parametrize(
    ("noise", "says"),
    [
        (Noise(1.5, 2.0, 0.0, {}), "the machine was busy before: load average 1.5 on 2 cores"),
        (Noise(0.0, 2.0, 0.07, {}), "the hypervisor gave 7% of the CPU time to other machines"),
    ],
)
def test_a_noisy_machine_is_warned_of(noise: Noise, says: str) -> None:
    assert showing.section(dataclasses.replace(TRANSFER, noise=noise)).warnings == [says]


def test_without_ratios_there_is_no_ratio_table() -> None:
    assert len(showing.section(dataclasses.replace(TRANSFER, ratios={})).tables) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1230"), (12345678.0, "12300000"), (0.01234, "0.0123"), (0.0, "0"), (90.0, "90")],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("socket_bytes", "memory_bytes", "used"),
    [
        (5_000, 0, "TCP"),
        (0, 0, "TCP"),
        (1_000, 1_000_000, "shared memory"),
        (250, 750, "shared memory (75 % of the bytes) and TCP"),
    ],
)
def test_the_transport_of_a_side_is_what_its_tasks_sent(
    socket_bytes: int, memory_bytes: int, used: str
) -> None:
    tasks = [{"tx_bytes": socket_bytes, "lent_bytes": 0.0}, {"lent_bytes": memory_bytes}]
    assert showing.transport_of(tasks) == used


def test_tables_name_the_transport() -> None:
    record = dataclasses.replace(TRANSFER, transports={"grpc": "TCP", "grpc++": "shared memory"})
    assert "transport: grpc TCP; grpc++ shared memory" in showing.section(record).notes
    assert Record.from_json(record.to_json()).transports == record.transports


def test_progress_in_a_log_is_a_line_an_activity_and_nothing_on_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressDisplay("starting", total=10) as progress:
        for _ in range(10):
            progress.activity("warming up")
            progress.activity("measuring")
            progress.advance()
    captured = capsys.readouterr()
    assert captured.err == "starting\nwarming up\nmeasuring\n"
    assert not captured.out


def test_progress_of_seconds_is_not_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay("simulating", total=10, is_long=False) as progress:
        progress.activity("200 workers")
        progress.advance(3)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_shows_how_far_it_is() -> None:
    script = (
        "from tensorwire.report.progress import ProgressDisplay\n"
        "with ProgressDisplay('measuring', 10) as p: p.advance(3)\n"
    )
    ours, its = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", script], stderr=its, timeout=60, check=True)
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(its)
    assert "measuring" in shown
    assert "3/10" in shown
