"""The site builds without warnings, and every page is readable and works offline."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import browsing
from browsing import PHONE_PX

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.docs


@pytest.fixture(scope="session")  # slow tests run long after the others
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Not at import, where REQUIRE=all would fail also a run without these tests.
    pytest.importorskip("sphinx", reason="the site is built by Sphinx")
    pytest.importorskip("tensorflow", reason="the reference is of what is imported")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-c", ROOT / "docs",
         "-d", folder / "doctrees", ROOT, folder / "html"],
        check=False, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_pages_can_be_read_on_a_phone_and_by_everybody(
    site: Path, browser: Any, colours: str
) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    found = []
    with browsing.opened(browser, pages[0].as_uri(), PHONE_PX, colours) as opened:
        for page in pages[colours == "dark" :: 2]:
            opened.go(page.as_uri())
            far = [url for url in opened.requests if not url.startswith(("file:", "data:"))]
            wide = [f"{opened.width_px} pixels"] if opened.width_px > PHONE_PX else []
            found += [
                f"{page.relative_to(site)}: {each}"
                for each in [*opened.console, *far, *wide, *opened.faults()]
            ]
    assert found == []


def test_every_link_leads_to_a_file_and_every_anchor_to_a_place(site: Path) -> None:
    texts = {page: page.read_text() for page in site.rglob("*.html")}
    places = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    broken = []
    for page, text in texts.items():
        for link in set(re.findall(r'(?:href|src)="([^"]+)"', text)):
            if re.match(r"[a-z]+:|//", link):
                continue
            path, anchor = urldefrag(link)
            target = (page.parent / unquote(path.split("?")[0])).resolve() if path else page
            if not target.exists() or (
                anchor and target in places and unquote(anchor) not in places[target]
            ):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_the_site_has_pages_of_the_program_itself(site: Path) -> None:
    page = (site / "docs/pages.html").read_text()
    for name, words in (
        ("bench-all", "From the link to training"),
        ("doctor", "embedding (12 MB) is too big for one ps"),
        ("k8s-compare", "ps"),
    ):
        assert f'href="pages/{name}.html"' in page
        assert words in (site / f"docs/pages/{name}.html").read_text()


def test_the_reference_has_every_command_with_its_options(site: Path) -> None:
    from tensorwire.cli.main import COMMANDS

    page = (site / "docs/reference/commands.html").read_text()
    for name in COMMANDS:
        assert f'<section id="tensorwire-{name}"' in page, name
    assert "--exact-rewrites" in page


def test_the_reference_has_what_scripts_call(site: Path) -> None:
    page = (site / "docs/reference/python.html").read_text()
    for name in ("tensorwire.tf.ConfigProto", "tensorwire.tf.stats", "tensorwire.tf.FiguresHook",
                 "tensorwire.tf.placement.balanced"):  # fmt: skip
        assert f'id="{name}"' in page, name
