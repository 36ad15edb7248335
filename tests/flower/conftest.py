"""What the tests with clients in memory share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _every_reply_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: replies in memory are there at once, and the shortest ``timeout`` must not lose any."""
    monkeypatch.setattr("fedvra.flower.exchange.GRACE_SECONDS", 60.0)
