"""A GPU that torch sees keeps runs on the CPU from forking; it is hidden in a process of our own only."""

from __future__ import annotations

import logging
import os

import pytest

from fedvra.core import accelerators
from fedvra.engines.pool import resolve_workers
from fedvra.runs.config import build
from fedvra.studies.parallel import Here, on_this_machine
from small_run import small


def test_where_one_is_seen_nothing_is_forked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(accelerators, "in_sight", lambda: True)
    with caplog.at_level(logging.WARNING, "fedvra"):
        assert resolve_workers(1) == 1
        assert not caplog.records
        assert resolve_workers(3) == 1
    assert "torch sees a GPU" in caplog.text
    assert isinstance(on_this_machine(4, at_once=2), Here)


def test_it_is_hidden_from_runs_on_the_cpu_while_the_process_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(accelerators.VARIABLE, "1")
    build(small())
    assert os.environ[accelerators.VARIABLE] == "1", "a program of the user's"
    with accelerators.own_process():
        build(small(device="cuda"))
        assert os.environ[accelerators.VARIABLE] == "1"
        build(small())
        assert os.environ[accelerators.VARIABLE] == ""
    assert os.environ[accelerators.VARIABLE] == "1"
    monkeypatch.delenv(accelerators.VARIABLE)
    with accelerators.own_process():
        accelerators.hide()
    assert accelerators.VARIABLE not in os.environ
