"""Privacy budgets in a round: who can afford it, what it cost, and what the record says of that."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedvra.core.cohort import Cohort, Ints
from fedvra.engines.experiment import Experiment, Plan, subset
from fedvra.engines.server_state import ServerState
from fedvra.privacy.spending import Spending


def told_samples(experiment: Experiment) -> Ints:
    """n_i as the clients tell the server."""
    samples, privacy = experiment.problem.samples(experiment.data), experiment.privacy
    return samples if privacy is None else privacy.told_by_all(samples, experiment.seed)


class Budgets:
    """Those of all clients; nobody has one, and nothing is said, where a run is without privacy."""

    def __init__(self, plan: Plan, state: ServerState) -> None:
        e = self.experiment = plan.experiment
        self.plan, self.state = plan, state
        self.spending = None if e.privacy is None else Spending(e.privacy, plan.samples, e.batch_size)
        self._said: dict[str, Any] = {}

    def within(self, cohort: Cohort) -> Cohort:
        """Those who can afford what they are asked to do; nobody, where an algorithm needs all and one cannot."""
        self._said = {}
        if self.spending is None or self.spending.rule.max_epsilon is None:
            return cohort
        state = self.state
        everybody = self.plan.describe(cohort.round, self.plan.members.numbers, state.counts, cohort.memory)
        left = int(self.spending.affords(everybody, state.private_steps).sum())
        able = self.spending.affords(cohort, state.private_steps)
        if self.experiment.algorithm.everyone_takes_part and not able.all():
            left, able = 0, np.zeros_like(able)
        self._said = {"in_budget": left}
        if not able.all():
            self._said["out_of_budget"] = cohort.clients[~able].tolist()
        return subset(cohort, able)

    def note(self, cohort: Cohort) -> None:
        """These clients have done their work: it is spent, whether or not their replies count."""
        if self.spending is not None:
            self.state.private_steps[cohort.clients] += cohort.steps

    def record(self) -> dict[str, Any]:
        """After the round: ``epsilon``, ``in_budget`` (how many could afford it) and ``out_of_budget`` (who was left out)."""
        if self.spending is None:
            return {}
        return {**self.spending.record(self.state.private_steps), **self._said}
