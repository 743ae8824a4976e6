"""The messages and outputs in docs/troubleshooting.md are those of the code."""

import re
import textwrap
from pathlib import Path

import pytest

from command_line import run_in_process

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"

# A part of an entry's text, and the source file that contains it.
TEXTS = {
    "cannot listen on": "native/wire/src/socket.cc",
    "It is the data port of": "native/tensorflow/transport/data_plane.cc",
    "its second one, which its peers try too": "native/tensorflow/transport/data_plane.cc",
    "is none of those that tensorwire carries a plug-in for": "src/tensorwire/plugin/prebuilt.py",
    "tensorwire: building": "src/tensorwire/plugin/cache.py",
    "the data port of": "native/wire/src/channel.cc",
    "could not be reached for": "native/wire/src/channel.cc",
    "of tensorwire's wire format, this is version": "native/wire/src/frame.cc",
}


def words(text: str) -> str:
    """The text without line breaks of a page or of string literals in a source."""
    return re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", text))


@pytest.mark.parametrize("text", TEXTS)
def test_an_entrys_text_is_what_the_code_says(text: str) -> None:
    assert text in words(PAGE.read_text())
    assert text in words((ROOT / TEXTS[text]).read_text())


SHOWN = re.findall(
    r"^    \$ tensorwire doctor --record (\S+)\n((?:    .+\n)+)", PAGE.read_text(), re.MULTILINE
)


@pytest.mark.parametrize(("look", "lines"), SHOWN, ids=[Path(each[0]).stem for each in SHOWN])
def test_an_output_on_the_page_is_what_the_doctor_prints(
    capsys: pytest.CaptureFixture[str], look: str, lines: str
) -> None:
    done = run_in_process(capsys, "doctor")("--record", ROOT / look)
    assert done.status == 0, done.err
    assert set(textwrap.dedent(lines).splitlines()) <= set(done.out.splitlines())


def test_the_page_shows_outputs() -> None:
    assert len(SHOWN) >= 4
