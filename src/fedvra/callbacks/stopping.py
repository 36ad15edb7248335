"""Ending a run early: at a target, or when it no longer improves.

Both go by the records alone, so a run that was interrupted and resumed stops in the same round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedvra.callbacks.base import Callback, Run
from fedvra.core.errors import StopRun, UsageError, require
from fedvra.core.goals import ACCURACY, VALIDATION, Goal, figure, name_in, require_figure, smaller_is_better
from fedvra.core.validation import check_whole
from fedvra.engines.experiment import Experiment
from fedvra.runs.files import Record
from fedvra.runs.history import series


@dataclass(frozen=True)
class Until(Callback):
    """Ends the run in the first round that reaches a target.

    Args:
        target: an accuracy in per cent, of the validation data where there are some and else of the test data; or another
            figure of the records with its value, ``"f1=0.8"``, ``"model_loss=0.3"``, ``"my_cost<=2"``. Figures are those of the
            model to deploy; what begins with ``test_`` is x0's.

    >>> Until(97), Until("f1=0.8")
    (Until(target=97), Until(target='f1=0.8'))
    """

    target: Any
    afterwards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Goal.read(self.target, "until")

    def check(self, experiment: Experiment) -> None:
        _require_evaluation(experiment)

    def on_round(self, run: Run, record: Record) -> None:
        goal = Goal.read(self.target)
        goal = goal.on(_watched(goal.metric, record))
        _require_measured(run, record, goal.metric, "until")
        if goal.reached(record):
            raise StopRun(f"{goal.words} was reached in round {record['round']}.")


@dataclass(frozen=True)
class Patience(Callback):
    """Ends the run when a figure has not improved for so many rounds.

    Args:
        rounds: how many.
        metric: which figure of the records, e.g. ``"f1"`` or ``"test_loss"``; None is the accuracy on the validation data where
            there are some, and else on the test data.
        least: by how much it must be better than the best so far to count as an improvement.
        smaller: whether it improves downwards; None goes by its name (``test_loss``, ``rmse`` and the like do).

    >>> Patience(20, metric="test_loss").rounds
    20
    """

    rounds: int
    metric: str | None = None
    least: float = 0.0
    smaller: bool | None = None
    afterwards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("patience", self.rounds)
        require(self.least >= 0, f"least must be >= 0, got {self.least}.")

    def check(self, experiment: Experiment) -> None:
        _require_evaluation(experiment)

    def on_round(self, run: Run, record: Record) -> None:
        metric = name_in(record, _watched(self.metric or ACCURACY, record))
        _require_measured(run, record, metric, "patience")
        sign = -1 if (smaller_is_better(metric) if self.smaller is None else self.smaller) else 1
        best, when = -math.inf, 0
        for round, value in series(run.records, metric):
            if sign * value > best + (self.least if math.isfinite(best) else 0):
                best, when = sign * value, round
        if figure(record, metric) is not None and record["round"] - when >= self.rounds:
            raise StopRun(f"{metric} has not improved since round {when}.")


def _watched(metric: str, record: Record) -> str:
    """Accuracy is that on the validation data where there are some: test data must not decide anything."""
    return VALIDATION if metric == ACCURACY and VALIDATION in record else metric


def _require_evaluation(experiment: Experiment) -> None:
    require(
        experiment.eval_every > 0,
        "early stopping needs figures to go by, and eval_every=0 never measures any: leave it out.",
    )


def _require_measured(run: Run, record: Record, metric: str, who: str) -> None:
    every = run.experiment.eval_every if run.experiment is not None else 1
    if record["round"] % max(every, 1) or ("/" in metric and len(run.records) < run.rounds):
        return  # a round that is not evaluated; what is nested comes as often as its own callback likes
    require_figure(record, metric, who)
    if metric in (ACCURACY, name_in(record, ACCURACY)) and figure(record, metric) is None:
        raise UsageError(
            f"{who} goes by the accuracy, which is not measured here: name another figure, e.g. test_loss or one of metrics=."
        )
