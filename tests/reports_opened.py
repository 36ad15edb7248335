"""A report's page opened in a real browser: Debian's chromium without a window, driven by Playwright."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


class Opened:
    """A page, with whatever went wrong on it and whatever it asked for."""

    def __init__(self, browser: Any, file: Path, viewport: dict[str, int] = WIDE, **options: Any) -> None:
        self.context = browser.new_context(
            viewport=viewport, permissions=["clipboard-read", "clipboard-write"], **options
        )
        self.context.set_default_timeout(120_000)  # a busy machine is no failure
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def picture(self, chart: int = 0) -> str:
        """What is drawn in a plot, down to the pixel."""
        return str(self.page.locator(".plot canvas").nth(chart).evaluate("canvas => canvas.toDataURL()"))

    def chip(self, label: str) -> Any:
        return self.page.locator("#groups button", has_text=label)

    def tool(self, name: str, chart: int = 0) -> Any:
        return self.page.locator(".card .tools").nth(chart).get_by_role("button", name=name)

    def copied(self, button: str) -> str:
        self.page.get_by_role("button", name=button).click()
        self.until("document.getElementById('copied').textContent !== ''")
        return str(self.page.evaluate("navigator.clipboard.readText()"))

    def until(self, condition: str) -> None:
        """As a function: bare text is evaluated anew at every look, and the page's policy allows the first alone."""
        self.page.wait_for_function(f"() => {condition}")

    def overflow(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def plain(self) -> None:
        """Nothing went wrong, and nothing but the page itself and what is in it was loaded."""
        assert self.troubles == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []
        assert len([url for url in self.requests if url.startswith("file:")]) == 1
