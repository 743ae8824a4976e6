"""Pages in a headless Chromium: what they say, ask for, and whether everybody can read them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PHONE_PX = 390
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
_FLAGS += ["--disable-component-update", "--no-first-run"]
_TIMEOUT_MS = 60_000
_SERIOUS = ("serious", "critical")
_NO_REQUESTS = {"preload": False}
"""axe-core would ask for the page's own styles, and may not from a file."""


@dataclass
class Opened:
    """A page in the browser, and all that it complained of or asked for."""

    tab: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, url: str) -> None:
        """To another page, of which then is all that it complained of or asked for."""
        self.console.clear()
        self.requests.clear()
        self.tab.goto(url)

    def words(self, selector: str) -> list[str]:
        return [text.strip() for text in self.tab.locator(selector).all_inner_texts()]

    def said_by_marks(self) -> set[str]:
        """The texts for screen readers of the bars and points that are shown."""
        marks = self.tab.locator('[role="graphics-symbol"]:visible')
        return {mark.get_attribute("aria-label") or "" for mark in marks.all()}

    @property
    def width_px(self) -> int:
        return int(self.tab.evaluate("document.documentElement.scrollWidth"))

    def faults(self) -> list[str]:
        """Serious accessibility faults that axe-core finds, each with the first place."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        return [
            f"{each['id']}: {each['help']}: {each['nodes'][0]['html']}"
            for each in axe.run(self.tab, options=_NO_REQUESTS).response["violations"]
            if each["impact"] in _SERIOUS
        ]


@contextmanager
def started() -> Iterator[Any]:
    """A browser; without one the test skips."""
    playwright = pytest.importorskip("playwright.sync_api", reason="it needs playwright")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=_FLAGS, timeout=_TIMEOUT_MS, headless=True
        )
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Any, url: str, width_px: int = 1100, colours: str = "light"
) -> Iterator[Opened]:
    """A page in a window of that width, in the light or the dark colour scheme."""
    context = browser.new_context(viewport={"width": width_px, "height": 844}, color_scheme=colours)
    context.set_default_timeout(_TIMEOUT_MS)
    page = Opened(context.new_page())
    page.tab.on("console", lambda message: page.console.append(message.text))
    page.tab.on("pageerror", lambda error: page.console.append(str(error)))
    page.tab.on("request", lambda request: page.requests.append(request.url))
    page.go(url)
    yield page
    context.close()
