"""Successive halving (Jamieson and Talwalkar, 2016): all settings for a part of the rounds, the best of them for more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedvra.core.goals import require_figure
from fedvra.show.tuning import Trial

KEPT = 3
"""One in so many settings is continued for so many times the rounds."""
LEAST = 2
"""So many are continued in any case."""

Play = Callable[[Sequence[int], int], dict[int, Trial]]
"""(numbers of settings, until which round) -> how each stands then."""


def rungs(rounds: int, settings: int) -> list[int]:
    """After which rounds two thirds of the settings are left behind, and the last one.

    >>> rungs(90, 2), rungs(90, 26), rungs(90, 27), rungs(2, 30)
    ([90], [30, 90], [10, 30, 90], [1, 2])
    """
    steps = 0 if settings < KEPT else 1 if settings < KEPT**3 else 2
    return sorted({max(1, rounds // KEPT**k) for k in range(steps + 1)}) if rounds else [rounds]


def kept(settings: int) -> int:
    """How many of them are continued after a rung."""
    return min(settings, max(LEAST, -(-settings // KEPT)))


def climb(settings: int, ladder: Sequence[int], rank: Callable[[Trial], tuple[float, ...]], play: Play) -> list[Trial]:
    """Every setting as far as it was run, the best first: that of the smallest rank."""
    going: list[int] = list(range(settings))
    trials: dict[int, Trial] = {}
    for until in ladder:
        trials.update(play(going, until))
        going.sort(key=lambda i: rank(trials[i].until(until)))
        if until < ladder[-1]:
            going = going[: kept(len(going))]
    behind = sorted(trials.keys() - set(going), key=lambda i: (-trials[i].rounds, rank(trials[i])))
    return [trials[i] for i in (*going, *behind)]


def require_judged(trial: Trial, metric: str | None) -> None:
    """Refuse to rank by a figure that the records do not have."""
    for run in trial.runs:
        if metric is not None and run.metrics:
            require_figure(run.metrics[-1], metric, "tune")
