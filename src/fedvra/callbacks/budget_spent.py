"""Ending a run when nobody has privacy left to spend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.callbacks.base import Callback, Run
from fedvra.core.errors import StopRun
from fedvra.runs.files import Record


@dataclass(frozen=True)
class BudgetSpent(Callback):
    """Ends the run after the first round that nobody could afford; part of every run with privacy."""

    afterwards: ClassVar[bool] = True

    def on_round(self, run: Run, record: Record) -> None:
        if record.get("in_budget") == 0:
            raise StopRun(f"the privacy budgets are spent: round {record['round']} would have exceeded max_epsilon.")
