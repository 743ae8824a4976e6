"""Tables and progress as they reach a terminal, a pipe or a log."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from tensorwire.bench.record import Host, Record, StepMs, StepsResult, TransferResult
from tensorwire.bench.stats import Ratio
from tensorwire.errors import TensorwireError
from tensorwire.report import page, tables
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
    assert any("tcp (raw)" in line and "3810" in line for line in lines)


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


class Page(HTMLParser):
    """The elements and the text of a page; it must be balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def transfer_page() -> str:
    results = [
        TransferResult("grpc", False, 100.0, 1, 30, 1000.0, STEP, 1.9),
        TransferResult("grpc++", False, 100.0, 1, 30, 2000.0, STEP, None),
    ]
    host = Host(cpu="<a CPU & more>", cores=2, kernel="6.1")
    record = Record("bench transfer", "2.21.0", results, {"grpc++/grpc": 2.0}, "0.1.0", host)
    plots = page.transfer_plots(results, {"tcp": 4000.0})
    return page.html(record, plots, {"grpc++/grpc": Ratio(2.0, 1.9, 2.1)})


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = transfer_page()
    found = Page(text)
    assert found.open == []
    assert not {"src", "href"} & {name for _, attributes in found.elements for name in attributes}
    assert "<a CPU & more>" in found.words
    assert "1.90 - 2.10" in found.words


def test_the_pages_bars_are_as_long_as_their_figures() -> None:
    found = Page(transfer_page())
    widths = [float(a["width"] or 0) for tag, a in found.elements if tag == "rect"]
    assert widths[0] * 2 == pytest.approx(widths[1], abs=0.2)
    assert widths[0] * 4 == pytest.approx(widths[2], abs=0.2)


def test_a_page_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    record = Record("bench steps", "2.21.0", [], {})
    with pytest.raises(TensorwireError, match=r"cannot write .*page\.html"):
        page.write(tmp_path / "missing" / "page.html", record, [], {})
