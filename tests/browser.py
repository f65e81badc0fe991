"""A real browser for tests of pages: Debian's chromium, driven by Playwright. Without one such tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Yields a browser, or skips the test and says what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pages are not tried in a browser: no playwright")
    if PROGRAM is None:
        pytest.skip(f"pages are not tried in a browser: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A tab with a page, which must not complain in its console."""

    def __init__(self, browser: Any, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.asked: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, address: str) -> Any:
        self.page.goto("about:blank")  # so that an address that differs in its fragment alone is loaded again
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready=yes]", timeout=20_000)
        return self.page

    def close(self) -> None:
        self.context.close()
        assert not self.complaints
