"""A browser for the tests of reports; without one they are skipped. `make test` installs it where apt may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reports_opened import CHROMIUM


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'"
    )
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()
