"""What the records of a run come to: first rounds at a target, falls, bytes, times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any

from fedvra.core.goals import ACCURACY, figure, goals, name_in

SETTLED = 20
"""The round from which on falls of accuracy count: before it, a run is still finding its way."""
TARGETS = (50, 60, 70, 80, 90, 95, 97, 98, 99)


def accuracies(metrics: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(round, test accuracy) of the rounds that were evaluated, of the model to deploy."""
    return series(metrics, ACCURACY)


def series(metrics: Iterable[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """(round, value) of the rounds that have a number of that name, which may be nested: ``diagnostics/xi``."""
    found = ((record["round"], figure(record, name)) for record in metrics)
    return [(round, value) for round, value in found if value is not None]


def rounds_to(metrics: Iterable[Mapping[str, Any]], targets: Iterable[Any] = TARGETS) -> dict[str, int | None]:
    """First round to reach each target, an accuracy in per cent or another figure; None where it was not reached.

    >>> rounds_to([{"round": 1, "test_accuracy": 0.4}, {"round": 2, "test_accuracy": 0.91}], [50, 90, 95, "f1=0.3"])
    {'50': 2, '90': 2, '95': None, 'f1=0.3': None}
    """
    records = list(metrics)
    return {str(goal): next((m["round"] for m in records if goal.reached(m)), None) for goal in goals(targets)}


def rounds_to_stay(metrics: Iterable[Mapping[str, Any]], targets: Iterable[Any] = TARGETS) -> dict[str, int | None]:
    """First round from which on each target is held to the end of the run; None where it is not held there.

    >>> swinging = [{"round": r + 1, "test_accuracy": a} for r, a in enumerate([0.4, 0.91, 0.85, 0.92, 0.93])]
    >>> rounds_to(swinging, [90, 95]), rounds_to_stay(swinging, [90, 95])
    ({'90': 2, '95': None}, {'90': 4, '95': None})
    """
    records, found = list(metrics), dict[str, int | None]()
    for goal in goals(targets):
        measured = [m for m in records if figure(m, name_in(m, goal.metric)) is not None]
        since = None
        for record in reversed(measured):
            if not goal.reached(record):
                break
            since = record["round"]
        found[str(goal)] = since
    return found


def worst_fall(metrics: Iterable[Mapping[str, Any]], after: int = SETTLED, name: str = ACCURACY) -> float | None:
    """By how much accuracy fell at most from one evaluated round to the next, from round ``after`` on.

    0 where it never fell; None where there are not two such rounds.

    >>> swinging = [{"round": r + 1, "test_accuracy": a} for r, a in enumerate([0.9, 0.5, 0.75, 0.5, 0.93])]
    >>> worst_fall(swinging, after=1), worst_fall(swinging, after=2), worst_fall(swinging)
    (0.4, 0.25, None)
    """
    late = [value for round, value in series(metrics, name) if round >= after]
    return max((max(0.0, a - b) for a, b in pairwise(late)), default=None)


def bytes_to(
    metrics: Iterable[Mapping[str, Any]], targets: Iterable[Any] = TARGETS, protocol: str = "here"
) -> dict[str, int | None]:
    """Bytes sent, up and down together, until each target was first reached; None where it was not.

    Args:
        protocol: ``"here"``, or ``"original"`` for what the algorithm as published would have sent in these rounds.

    >>> sent = {"bytes_up": 8, "bytes_down": 4, "bytes_up_original": 16, "bytes_down_original": 8}
    >>> metrics = [{"round": r, "test_accuracy": a, **sent} for r, a in [(1, 0.4), (2, 0.91)]]
    >>> bytes_to(metrics, [90, 95]), bytes_to(metrics, [90, 95], "original")
    ({'90': 24, '95': None}, {'90': 48, '95': None})
    """
    records = list(metrics)
    total = dict(zip((m["round"] for m in records), accumulate(sent(m, protocol) for m in records), strict=True))
    return {target: None if r is None else total[r] for target, r in rounds_to(records, targets).items()}


def time_to(metrics: Iterable[Mapping[str, Any]], targets: Iterable[Any] = TARGETS) -> dict[str, float | None]:
    """Simulated seconds until each target was first reached; None where it was not, or where no system told the time.

    >>> time_to([{"round": 1, "test_accuracy": 0.4, "simulated_time": 7.5}], [30, 50])
    {'30': 7.5, '50': None}
    """
    records = list(metrics)
    time = {m["round"]: m.get("simulated_time") for m in records}
    return {target: None if r is None else time[r] for target, r in rounds_to(records, targets).items()}


def sent(record: Mapping[str, Any], protocol: str = "here") -> int:
    """Bytes of one round, up and down together, as sent ``"here"`` or by the ``"original"`` protocol."""
    ending = {"here": "", "original": "_original"}[protocol]
    return int(record[f"bytes_up{ending}"] + record[f"bytes_down{ending}"])


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """All finite numbers of a record but the round's own, nested ones by their path.

    >>> numbers({"round": 3, "test_accuracy": None, "seconds": 0.5, "cohort": [1], "diagnostics": {"xi": 2.0}})
    {'seconds': 0.5, 'diagnostics/xi': 2.0}
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found.update({f"{name}/{inner}": each for inner, each in numbers(value).items()})
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = float(value)
    found.pop("round", None)
    return found
