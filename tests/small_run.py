"""A run of ten short rounds on digits that takes a fraction of a second."""

from __future__ import annotations

from typing import Any

from fedvra.runs.config import configure
from fedvra.runs.options import RunConfig

SMALL = {
    "task": "digits", "rounds": 10, "clients": 20, "cohort": 5, "steps": 1, "workers": 1, "model": "linear",
    "checkpoint_every": 3, "drop": 0.1,
}  # fmt: skip


def small(**options: Any) -> RunConfig:
    return configure(SMALL, options)
