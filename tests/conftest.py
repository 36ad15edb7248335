"""Fixtures that several files share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fedvra.studies.execution import execute
from small_run import small

os.environ.pop("COLUMNS", None)  # which pytest-xdist sets, and tables go by
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")  # a busy machine is no failure, and every run tries the same examples


@pytest.fixture(autouse=True)
def _every_reply_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: replies of clients in memory are there at once, and the shortest ``timeout`` must lose none."""
    if (exchange := sys.modules.get("fedvra.flower.exchange")) is not None:
        monkeypatch.setattr(exchange, "GRACE_SECONDS", 60.0)


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing who holds what takes longer than a small run."""
    monkeypatch.setattr("fedvra.studies.execution.picture", lambda data, path: None)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten rounds that was never stopped."""
    path = tmp_path_factory.mktemp("whole") / "run"
    execute(small(), path)
    return path
