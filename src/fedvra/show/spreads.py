"""Figures over several runs: means with their deviation, rounds to a target that not all reached, and which are best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation over some runs (deviation 0 for a single one)."""

    mean: float
    std: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None where no run has a value.

        >>> Spread.of([1.0, 3.0, None])
        Spread(mean=2.0, std=1.4142135623730951, runs=2)
        """
        found = [value for value in values if value is not None]
        if not found:
            return None
        return cls(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0, len(found))

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which has no infinity: the mean is None where it is beyond all others."""
        return {"mean": self.mean if math.isfinite(self.mean) else None, "std": self.std, "runs": self.runs}

    def text(self, digits: int, scale: float = 1.0) -> str:
        mean = f"{scale * self.mean:.{digits}f}"
        return f"{mean} ± {scale * self.std:.{digits}f}" if self.runs > 1 else mean


BEYOND = Spread(math.inf, 0.0, 0)
"""What comes after every figure: the rounds to a target that some runs did not reach."""


@dataclass(frozen=True)
class Reached:
    """What it took to reach a target, over all runs that count, whether they got there or not.

    A run that did not get there took more than all it had. So where some did not, the mean is a lower bound, shown as
    ``>40.7``, and never the best.
    """

    mean: float
    std: float
    runs: int
    """That got there."""
    counted: int

    @classmethod
    def of(cls, values: Sequence[float | None], spent: Sequence[float]) -> Reached | None:
        """``spent`` is what each run had at its end; None where there is no run at all.

        >>> Reached.of([30, 42, None], [50, 50, 50]).text(), Reached.of([None], [50]).text(), Reached.of([3, 4], [9, 9]).text()
        ('>40.7 (2 of 3)', '>50', '3.5 ± 0.7')
        """
        least = [end if value is None else value for value, end in zip(values, spent, strict=True)]
        bound, there = Spread.of(least), sum(value is not None for value in values)
        if bound is None:
            return None
        return cls(bound.mean, bound.std if there == len(least) else 0.0, there, len(least))

    @property
    def complete(self) -> bool:
        return self.runs == self.counted

    @property
    def spread(self) -> Spread | None:
        """Where every run got there."""
        return Spread(self.mean, self.std, self.runs) if self.complete else None

    @property
    def ranked(self) -> Spread:
        """What it is compared by: where some did not get there, it comes after everything that did."""
        return self.spread or BEYOND

    def text(self) -> str:
        digits = 0 if float(self.mean).is_integer() and (self.counted == 1 or not self.complete) else 1
        if self.complete:
            return Spread(self.mean, self.std, self.runs).text(digits)
        return f">{self.mean:.{digits}f}" + (f" ({self.runs} of {self.counted})" if self.runs else "")


def best(values: Sequence[Spread | None], highest: bool = False) -> set[int]:
    """Which are the best: all within one deviation of the least mean (or the highest); none where all are alike.

    >>> sorted(best([Spread(5.0, 1.0, 3), Spread(5.8, 0.1, 3), Spread(9.0, 5.0, 3), None]))
    [0, 1]
    >>> best([Spread(1.0, 0.0, 1), Spread(1.0, 0.0, 1)]), best([Spread(1.0, 0.0, 1), None])
    (set(), set())
    >>> best([Spread(30.0, 2.0, 3), Reached.of([40, None], [50, 50]).ranked])  # the only one that always got there
    {0}
    """
    found = {k: value for k, value in enumerate(values) if value is not None}
    means = {value.mean for value in found.values()}
    if len(means) < 2:
        return set()
    first = max(means) if highest else min(means)
    width = max(value.std for value in found.values() if value.mean == first)
    return {k for k, value in found.items() if abs(value.mean - first) <= width}
