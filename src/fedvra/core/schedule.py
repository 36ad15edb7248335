"""Stepsizes that change, over rounds or over local steps: decay, warm-up and half a cosine."""

from __future__ import annotations

import math

from fedvra.core.errors import require
from fedvra.core.validation import check_whole


def factor(t: int, decay: float, warmup: int, end: int | None) -> float:
    """decay^t, times the share of the warm-up that is done, times half a cosine from its end to ``end``.

    >>> [round(factor(t, 1.0, 2, 6), 3) for t in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    value = decay**t
    if t < warmup:
        return value * (t + 1) / warmup
    if end is not None:
        value *= (1 + math.cos(math.pi * (t - warmup) / (end - warmup))) / 2
    return value


def check_schedule(decay: float, warmup: int, what: str) -> None:
    require(0 < decay <= 1, f"lr_decay over {what} must be in (0, 1], got {decay}.")
    check_whole(f"warmup over {what}", warmup, least=0)
