"""What a run is to reach: an accuracy in per cent, or a value of any other figure of its records."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedvra.core.errors import UsageError, require

Target: TypeAlias = float | str
"""An accuracy in per cent, or a figure and its value: 97, "f1=0.8"."""
ACCURACY = "model_accuracy"
"""Of the model that a run is for; a record that has none of that name is of a run for x0, whose is ``test_accuracy``."""
VALIDATION = "validation_accuracy"
MODEL, TEST = "model_", "test_"
SMALLER_IS_BETTER = ("loss", "error", "mse", "rmse", "mae", "perplexity", "gap", "cost")
"""How the names of figures end that are to become small."""


def smaller_is_better(metric: str) -> bool:
    """Whether a figure of this name is to become small, judged by how its name ends.

    >>> smaller_is_better("test_loss"), smaller_is_better("clients/loss/mean"), smaller_is_better("f1")
    (True, True, False)
    """
    return any(word in SMALLER_IS_BETTER for word in re.split(r"[/_]", metric.lower()))


def of_model(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures under the names they have in a record when they are of the model to deploy, and that is not x0.

    >>> of_model({"test_accuracy": 0.5, "f1": 0.4, "validation_loss": 1.0})
    {'model_accuracy': 0.5, 'model_f1': 0.4, 'model_validation_loss': 1.0}
    """
    return {MODEL + name.removeprefix(TEST): value for name, value in figures.items()}


def name_in(record: Mapping[str, Any], metric: str) -> str:
    """The name under which a record has a figure of the model to deploy. What begins with ``test_`` is x0's, by its name.

    >>> both = {"test_accuracy": 0.5, "model_accuracy": 0.6, "f1": 0.4, "model_f1": 0.5}
    >>> [name_in(both, name) for name in ("model_accuracy", "test_accuracy", "f1")]
    ['model_accuracy', 'test_accuracy', 'model_f1']
    >>> [name_in({"test_accuracy": 0.5, "f1": 0.4}, name) for name in ("model_accuracy", "f1", "model_f1")]
    ['test_accuracy', 'f1', 'f1']
    """
    if metric in record and metric.startswith((MODEL, TEST)):
        return metric
    plain = metric.removeprefix(MODEL)
    known = (MODEL + plain, TEST + plain, plain) if metric.startswith(MODEL) else (MODEL + plain,)
    return next((name for name in known if name in record), metric)


def figure(record: Mapping[str, Any], metric: str) -> float | None:
    """A number of a record, which may be nested: ``diagnostics/xi``; None where it has none.

    One of the model to deploy (``model_...``) is that of x0 where the record has no other.
    """
    value: Any = record
    metric = name_in(record, metric) if metric.startswith(MODEL) else metric
    for part in metric.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None or isinstance(value, bool | str | list | Mapping) else float(value)


def require_figure(record: Mapping[str, Any], metric: str, who: str) -> None:
    """Refuse a name that the records do not have."""
    inner = {name: f"{name}/{key}" for name, value in record.items() if isinstance(value, Mapping) for key in value}
    known = sorted({*(name for name in record if not isinstance(record[name], list | str)), *inner.values()})
    found: Any = record
    for part in name_in(record, metric).split("/"):
        require(
            isinstance(found, Mapping) and part in found,
            f"{who} goes by {metric!r}, which the records do not have: name one of {', '.join(known)}.",
        )
        found = found[part]


@dataclass(frozen=True)
class Goal:
    """A figure and the value it is to reach.

    >>> str(Goal.read(97)), str(Goal.read("f1=0.8")), str(Goal.read("test_loss=0.3")), str(Goal.read("length<=4"))
    ('97', 'f1=0.8', 'test_loss=0.3', 'length<=4')
    >>> Goal.read("97").reached({"test_accuracy": 0.975}), Goal.read("rmse=2").reached({"rmse": 2.5})
    (True, False)
    """

    metric: str
    value: float
    """Of accuracies in per cent, of others as it is in the records."""
    smaller: bool
    """Whether it is reached from above."""

    @classmethod
    def read(cls, given: Any, name: str = "the target") -> Goal:
        """A number is an accuracy in per cent; ``f1=0.8``, ``cost<=3`` and ``auc>=0.9`` are other figures of the records.

        They are those of the model to deploy. ``test_accuracy=97`` and all that begins so are x0's.
        """
        if isinstance(given, Goal):
            return given
        match = re.fullmatch(r"\s*(?:([A-Za-z_][\w/.-]*?)\s*(<=|>=|=))?\s*([-+.\w]+?)\s*%?\s*", str(given))
        try:
            value = float(match[3]) if match and not isinstance(given, bool) else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise UsageError(
                f"{name} must be an accuracy in per cent such as 97, or a figure and its value such as f1=0.8, got {given!r}."
            )
        metric, sign = match[1] or ACCURACY, match[2] or "="
        goal = cls(metric, value, smaller_is_better(metric) if sign == "=" else sign == "<=")
        require(
            not goal.percent or 0 < value <= 100,
            f"{name} must be an accuracy in per cent such as 97, got {given!r}.",
        )
        return goal

    @property
    def percent(self) -> bool:
        return self.metric.endswith("accuracy")

    def on(self, metric: str) -> Goal:
        """The same for another figure."""
        return Goal(metric, self.value, self.smaller)

    def reached(self, record: Mapping[str, Any]) -> bool:
        found = figure(record, name_in(record, self.metric))
        if found is None or math.isnan(found):
            return False
        found = 100 * found if self.percent else found
        return found <= self.value if self.smaller else found >= self.value

    def __str__(self) -> str:
        if self.metric == ACCURACY and not self.smaller:
            return f"{self.value:g}"
        sign = "=" if self.smaller == smaller_is_better(self.metric) else "<=" if self.smaller else ">="
        return f"{self.metric}{sign}{self.value:g}"

    @property
    def words(self) -> str:
        """In tables: 97%, f1 0.8."""
        if self.metric == ACCURACY and not self.smaller:
            return f"{self.value:g}%"
        sign = " " if self.smaller == smaller_is_better(self.metric) else " <= " if self.smaller else " >= "
        return f"{self.metric}{sign}{self.value:g}{'%' if self.percent else ''}"


def goals(targets: Iterable[Any]) -> list[Goal]:
    return [Goal.read(target) for target in targets]


def in_order(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Each once: accuracies ascending, then the others as they come.

    >>> in_order([95, "f1=0.8", 90, 95])
    (90, 95, 'f1=0.8')
    """
    once = dict.fromkeys(targets)
    return (*sorted(t for t in once if not isinstance(t, str)), *(t for t in once if isinstance(t, str)))
