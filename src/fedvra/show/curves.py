"""The curve of several runs that differ in their seed alone."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedvra.core.goals import ACCURACY
from fedvra.runs.files import Record
from fedvra.runs.history import series
from fedvra.show.plots import Curve
from fedvra.show.spreads import Spread


def mean_curve(
    label: str, runs: Iterable[list[Record]], name: str = ACCURACY, algorithm: str = "", whole: bool = True
) -> Curve | None:
    """Mean and deviation over runs, at the rounds where all of them have a number of that name; None without any such."""
    drawn = [dict(series(metrics, name)) for metrics in runs]
    rounds = sorted(set(drawn[0]).intersection(*drawn))
    spreads = [Spread.of(curve[r] for curve in drawn) for r in rounds]
    points = [spread for spread in spreads if spread is not None]
    if not points:
        return None
    # No band says what no run could: a loss below zero, an accuracy above one.
    floor = 0.0 if all(value >= 0 for curve in drawn for value in curve.values()) else -math.inf
    ceiling = 1.0 if name.endswith("accuracy") else math.inf
    return Curve(
        label,
        rounds,
        mean=[point.mean for point in points],
        low=[max(floor, point.mean - point.std) for point in points],
        high=[min(ceiling, point.mean + point.std) for point in points],
        algorithm=algorithm,
        whole=whole,
    )
