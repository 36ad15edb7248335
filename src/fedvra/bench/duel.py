"""What two checkouts timed in turn say of each other: a ratio, its spread, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Duel:
    """One algorithm on one workload, timed on both sides."""

    workload: str
    title: str
    algorithm: str
    workers: int
    rounds: int
    """Per pass."""
    starts: int
    """How often both sides were started afresh."""
    ours: str
    other: str
    our_seconds: tuple[float, ...]
    """Per round, one entry per pass of every start."""
    other_seconds: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Of every pass, the other's seconds over ours: above 1 we are faster."""
        return [b / a for a, b in zip(self.our_seconds, self.other_seconds, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        ratios = self.ratios
        if len(ratios) == 1:
            return ratios[0], ratios[0]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        return low, high

    @property
    def verdict(self) -> str:
        """In words: how much faster, and whether that is more than the passes differ among themselves."""
        interval = median_interval(self.ratios)
        if interval is None:
            told = "too few passes to tell from noise"
        elif interval[0] <= 1 <= interval[1]:
            told = "within the noise"
        else:
            told = f"{'faster' if self.ratio > 1 else 'slower'}, beyond the noise"
        return f"{self.ratio:.2f} x as fast as {self.other}; {told}"

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "median_seconds": {"ours": median(self.our_seconds), "other": median(self.other_seconds)},
            "ratio": self.ratio,
            "quartiles": self.quartiles,
            "interval": median_interval(self.ratios),
            "verdict": self.verdict,
        }


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the median of such values lies with 95% confidence, by the sign test; None for fewer than six of them.

    >>> median_interval([1, 2, 3, 4, 5, 6, 7])
    (1, 7)
    >>> median_interval(range(20))
    (5, 14)
    """
    ordered, n = sorted(values), len(values)
    outside, found = 0.0, None
    for k in range((n + 1) // 2):
        outside += 2 * math.comb(n, k) / 2**n  # that k or fewer lie on one side of the median
        if outside > 1 - CONFIDENCE:
            break
        found = ordered[k], ordered[n - 1 - k]
    return found
