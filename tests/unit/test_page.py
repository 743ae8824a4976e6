"""The page of a report in a real browser: its contents, and that it loads no other file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import browsing
from browsing import PHONE_PX, Opened
from tensorwire.bench.experiments.transfer import TransferResult
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.columns import StepMs
from tensorwire.bench.frame.record import Machine, Noise, Ratio, Record, Result
from tensorwire.errors import TensorwireError
from tensorwire.report import charts, page
from tensorwire.report.section import (
    Bar,
    Bars,
    Line,
    Lines,
    Report,
    Section,
    Waterfall,
    WaterfallStage,
)

pytestmark = pytest.mark.docs  # playwright is only there

TRANSFER = Record[Result](
    "bench transfer",
    "2.21.0",
    [
        TransferResult("grpc", False, 100.0, 1, 30, 1000.0, StepMs(100.0, 110.0, 90.0), 1.9),
        TransferResult("grpc++", False, 100.0, 1, 30, 2000.0, StepMs(50.0, 55.0, 45.0), None),
    ],
    {"grpc++/grpc": Ratio(2.0, (1.2, 2.9))},
    host=Machine("<a CPU & more>", 2, "6.1"),
    baselines={"tcp": 4000.0},
    noise=Noise(0.1, 1.0, 0.0, {"grpc": 0.03}),
)
EVERY_CHART = Report(
    "tensorwire bench all",
    ["a machine"],
    [
        Section(
            "Layers",
            charts=[
                Bars(
                    "Steps a second",
                    "steps/s",
                    [
                        Bar("grpc", 66.0, "grpc"),
                        Bar("grpc++", 184.0, "grpc++", 150.0, 250.0, ", p99 250"),
                    ],
                ),
                Bars(
                    "Runs",
                    "MB/s",
                    [Bar("grpc++, a-run-of-quite-a-long-name-2.21.0", 123000.0, "grpc++")],
                ),
                Waterfall(
                    "From the link to training",
                    "MB/s",
                    [
                        WaterfallStage("link", 1250.0, "raw"),
                        WaterfallStage("grpc rpc", 500.0, "grpc", before=1250.0),
                    ],
                ),
                Lines(
                    "Throughput over size",
                    "MB/s",
                    [
                        Line("grpc", [(64, 0.1), (1e6, 400.0), (1e9, 1100.0)]),
                        Line("grpc++", [(64, 0.3), (1e6, 900.0), (1e9, 1200.0)]),
                    ],
                ),
            ],
        )
    ],
)


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    with contextlib.ExitStack() as held:

        def open_it(report: Report, width_px: int = 1100, colours: str = "light") -> Opened:
            path = tmp_path / "page.html"
            page.write(path, report)
            opened = held.enter_context(browsing.opened(browser, path.as_uri(), width_px, colours))
            assert opened.console == []
            asked = [url for url in opened.requests if not url.startswith("data:")]
            assert asked == [path.as_uri()]
            return opened

        yield open_it


def test_the_page_has_the_records_figures(open_page: Open) -> None:
    opened = open_page(showing.report(TRANSFER))
    assert opened.words("h1") == [
        "grpc++ moves 100 MB from worker to ps 2.00 times as fast as grpc."
    ]
    rows = [row.split("\t") for row in opened.words("tbody tr")]
    assert ["grpc", "1000", "100", "110", "90", "1.9"] in rows
    assert ["grpc++", "2000", "50", "55", "45", "-"] in rows
    assert ["grpc++/grpc", "2.00", "1.20 to 2.90"] in rows
    assert any("may be from 1.20 to 2.90" in text for text in opened.words(".warning li"))
    assert "<a CPU & more>, 2 cores" in opened.words(".facts li")
    assert {"grpc: 1000 MB/s", "grpc++: 2000 MB/s", "tcp (raw): 4000 MB/s"} <= (
        opened.said_by_marks()
    )


def test_bars_are_as_long_as_their_figures(open_page: Open) -> None:
    opened = open_page(showing.report(TRANSFER))

    def length_px(words: str) -> float:
        box = opened.tab.locator(f'[aria-label="{words}"]:visible').first.bounding_box()
        assert box is not None
        return float(box["width"])

    assert length_px("grpc: 1000 MB/s") * 2 == pytest.approx(length_px("grpc++: 2000 MB/s"), abs=2)
    assert length_px("grpc: 1000 MB/s") * 4 == pytest.approx(
        length_px("tcp (raw): 4000 MB/s"), abs=2
    )


@pytest.mark.parametrize("width_px", [1100, PHONE_PX])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_chart_fits_its_screen_and_can_be_read(
    open_page: Open, width_px: int, colours: str
) -> None:
    opened = open_page(EVERY_CHART, width_px, colours)
    assert opened.width_px <= width_px
    assert opened.faults() == []
    assert {
        "grpc: 66 steps/s",
        "grpc++: 184 steps/s, p99 250",
        "grpc++, a-run-of-quite-a-long-name-2.21.0: 123000 MB/s",
        "grpc rpc: 500 MB/s (\N{MINUS SIGN}60%)",
        "grpc++, 1 GB: 1200 MB/s",
    } <= opened.said_by_marks()
    shown = opened.tab.locator("svg:visible")
    assert shown.count() == 4
    for svg in shown.all():
        box = svg.bounding_box()
        assert box is not None and box["x"] + box["width"] <= width_px
        for text in svg.locator("text").all():
            assert contrast(opened.tab, text) >= 4.5
            words = text.bounding_box()
            assert words is not None
            assert box["x"] - 1 <= words["x"]
            assert words["x"] + words["width"] <= box["x"] + box["width"] + 1
            size_px = float(text.evaluate("text => text.getBoundingClientRect().height"))
            assert size_px >= 11


def contrast(tab: Any, text: Any) -> float:
    """The contrast of a text and the page's background by WCAG, from 1 to 21."""
    colours = [
        text.evaluate("text => getComputedStyle(text).fill"),
        tab.evaluate("getComputedStyle(document.body).backgroundColor"),
    ]
    light, dark = sorted((luminance(colour) for colour in colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    shares = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
    red, green, blue = (s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_dark_mode_is_dark(open_page: Open) -> None:
    grounds = {
        colours: open_page(EVERY_CHART, colours=colours).tab.evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for colours in ("light", "dark")
    }
    assert luminance(grounds["light"]) > 0.9
    assert luminance(grounds["dark"]) < 0.05


def test_a_page_is_small() -> None:
    assert len(page.html(EVERY_CHART)) < 300_000


def test_a_page_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TensorwireError, match=r"cannot write .*page\.html"):
        page.write(tmp_path / "missing" / "page.html", EVERY_CHART)


def test_without_what_draws_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(charts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TensorwireError, match=r"pip install 'tensorwire\[report\]'"):
        page.html(EVERY_CHART)
