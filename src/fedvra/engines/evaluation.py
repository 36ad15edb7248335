"""The global model on data: test and validation data, and each client's own.

What is looked at is cut into parts that do not depend on the workers, and metrics are computed here, from outputs in the order
of the samples: neither do the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Floats, Ints
from fedvra.core.deploy import X0, Deployed
from fedvra.core.errors import require
from fedvra.core.goals import of_model
from fedvra.core.objects import equal
from fedvra.data.dataset import FederatedData
from fedvra.engines.experiment import Experiment
from fedvra.engines.pool import Engine
from fedvra.engines.server_state import ServerState
from fedvra.engines.worker import EvaluateTask, FineTune, LookTask
from fedvra.local.measuring import TEST_PART
from fedvra.local.metrics import compute
from fedvra.local.protocol import Evaluation, HasFigures, HasTestData, Looked, Samples, Solver, with_outputs

NOT_NOW: dict[str, Any] = {"test_accuracy": None, "test_loss": None}
"""What the record of a round without evaluation has."""
AT_ONCE = 8
"""Parts whose outputs are held at once; a function of all outputs holds more, see ``fedvra.local.metrics``."""


@dataclass(frozen=True)
class ClientScores:
    """What single clients see; arrays over them."""

    clients: Ints
    samples: Ints
    """Of the part that was looked at."""
    figures: dict[str, Floats]
    """By name: accuracy, loss and the run's metrics; NaN where a client has none."""


class Evaluator:
    """Has the workers look at a model that ``show`` shows them; None is x0."""

    def __init__(
        self, experiment: Experiment, solver: Solver, engine: Engine, show: Callable[[Deployed | None], None]
    ) -> None:
        self.experiment, self.solver, self.engine, self.show = experiment, solver, engine, show
        if experiment.metrics:
            with_outputs(solver)
            require(
                isinstance(solver, HasTestData) and solver.test_parts > 0,
                "metrics are computed on test data, and there are none: name some with fv.split(..., test=(inputs, targets)).",
            )

    def record(self, state: ServerState, second_block: Callable[[], dict[int, Tensor]]) -> dict[str, Any]:
        """What a round's record has of x0; and of the model that the run is for, under other names, where it is another."""
        every, model = self.experiment.eval_every, state.deployed
        now = bool(every) and state.round % every == 0
        found = self._figures(None, state.x0, second_block) if now else dict(NOT_NOW)
        if self.experiment.deployment == X0:
            return found
        same = model is None or (torch.equal(model.x, state.x0) and equal(model.aux, state.aux))
        if model is None or same or not now:
            return {**found, **of_model(found)}
        return {**found, **of_model(self._figures(model, model.x, second_block))}

    def _figures(
        self, model: Deployed | None, x: Tensor, second_block: Callable[[], dict[int, Tensor]]
    ) -> dict[str, Any]:
        """The test data, validation data, and whatever else the problem measures."""
        found = {**NOT_NOW, **self.test(model), **self.validation(model)}
        if isinstance(self.solver, HasFigures):
            found.update(self.solver.measure(x, second_block()))
        return found

    def test(self, model: Deployed | None) -> dict[str, float | None]:
        """Accuracy and loss on the test data, and the metrics."""
        if not (isinstance(self.solver, HasTestData) and self.solver.test_parts):
            return {}
        self.show(model)
        if not self.experiment.metrics:
            parts: list[Evaluation] = self.engine.map([EvaluateTask(k) for k in range(self.solver.test_parts)])
            return named(parts, "test_")
        return self._looked(self.experiment.data.dataset.test_samples, None, "test_", "")

    def validation(self, model: Deployed | None) -> dict[str, float | None]:
        """The same on the part of the training data that was set aside; nothing where none was."""
        data = self.experiment.data
        rows = data.validation if isinstance(data, FederatedData) else None
        if rows is None:
            return {}
        with_outputs(self.solver)
        self.show(model)
        return self._looked(len(rows), rows, "validation_", "validation_")

    def _looked(self, count: int, rows: Ints | None, prefix: str, metric_prefix: str) -> dict[str, float | None]:
        stretches = [np.arange(k, min(k + TEST_PART, count)) for k in range(0, count, TEST_PART)]
        outputs = bool(self.experiment.metrics)
        tasks = [LookTask(Samples(s if rows is None else rows[s], rows is None), outputs) for s in stretches]
        sums: list[Evaluation] = []
        pieces = self._pieces(tasks, sums)
        metrics = compute(self.experiment.metrics, pieces)
        return {**named(sums, prefix), **{metric_prefix + name: value for name, value in metrics.items()}}

    def _pieces(self, tasks: Sequence[LookTask], sums: list[Evaluation]) -> Iterator[Looked]:
        for k in range(0, len(tasks), AT_ONCE):
            for looked in self.engine.map(tasks[k : k + AT_ONCE]):
                sums.append(looked.sums)
                yield looked

    def of_clients(
        self,
        model: Deployed | None,
        clients: Ints,
        rows: Sequence[Ints],
        tune: Callable[[int], FineTune] | None,
    ) -> ClientScores:
        """The model on these rows of the training data, client by client, perhaps after some local steps of each."""
        with_outputs(self.solver)
        self.show(model)
        metrics = self.experiment.metrics
        tasks = [
            LookTask(Samples(part), bool(metrics), None if tune is None else tune(k)) for k, part in enumerate(rows)
        ]
        found: list[dict[str, float | None]] = []
        for k in range(0, len(tasks), AT_ONCE * 8):
            for looked in self.engine.map(tasks[k : k + AT_ONCE * 8]):
                found.append({**named([looked.sums], ""), **(compute(metrics, [looked]) if metrics else {})})
        names = list(dict.fromkeys(name for each in found for name in each))
        columns = {name: np.array([_or_nan(each.get(name)) for each in found]) for name in names}
        figures = {name: column for name, column in columns.items() if not np.isnan(column).all()}
        return ClientScores(clients, np.array([len(part) for part in rows]), figures)


def named(parts: Sequence[Evaluation], prefix: str) -> dict[str, Any]:
    """Accuracy and loss of several parts together; an accuracy is None where outputs are no scores of classes."""
    count = sum(p.samples for p in parts)
    correct = sum(p.correct for p in parts)
    return {
        f"{prefix}accuracy": None if np.isnan(correct) or not count else correct / count,
        f"{prefix}loss": sum(p.loss for p in parts) / count if count else None,
    }


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
