"""Pages in a headless Chromium: their texts, their requests, and their accessibility."""

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
"""Stops axe-core from requesting the page's styles, which is not allowed for files."""


@dataclass
class Opened:
    """A page in the browser, with its console errors and requests."""

    tab: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, url: str) -> None:
        """Opens another page, and clears errors and requests of the earlier one."""
        self.console.clear()
        self.requests.clear()
        self.tab.goto(url)

    def words(self, selector: str) -> list[str]:
        return [text.strip() for text in self.tab.locator(selector).all_inner_texts()]

    def said_by_marks(self) -> set[str]:
        """The screen-reader texts of the visible bars and points."""
        marks = self.tab.locator('[role="graphics-symbol"]:visible')
        return {mark.get_attribute("aria-label") or "" for mark in marks.all()}

    @property
    def width_px(self) -> int:
        return int(self.tab.evaluate("document.documentElement.scrollWidth"))

    def faults(self) -> list[str]:
        """Serious accessibility faults from axe-core, each with its first element."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        return [
            f"{each['id']}: {each['help']}: {each['nodes'][0]['html']}"
            for each in axe.run(self.tab, options=_NO_REQUESTS).response["violations"]
            if each["impact"] in _SERIOUS
        ]


@contextmanager
def started() -> Iterator[Any]:
    """A browser; skips the test if there is none."""
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
