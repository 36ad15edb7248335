"""What every client of a run has spent of its privacy, and who can afford the next round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Cohort, Floats, Ints
from fedvra.core.record_dp import RecordDP
from fedvra.privacy.accountant import MOST, Answer, epsilon, most_steps, require_accountant, together

FEW = 32
"""Clients of whom a record says what each has spent."""


def count_account(rule: RecordDP) -> dict[Answer, int]:
    """What telling the number of samples costs."""
    return {Answer(1.0, rule.count_noise): 1} if rule.count_noise else {}


def steps_account(rule: RecordDP, samples: int, batch_size: int | None, steps: int) -> dict[Answer, int]:
    """What so many local steps cost a client that says it holds so many samples."""
    (rate,) = rule.rates(np.array([samples]), batch_size).tolist()
    return {Answer(rate, rule.noise): steps}


class Spending:
    """The books of all clients of a simulation; the steps themselves are kept by the server's state."""

    def __init__(self, rule: RecordDP, samples: Ints, batch_size: int | None) -> None:
        if rule.noise:
            require_accountant()
        self.rule, self.samples, self.batch_size = rule, samples, batch_size
        kinds, self._kind = np.unique(rule.rates(samples, batch_size), return_inverse=True)
        self._answers = [Answer(rate, rule.noise) for rate in kinds.tolist()]
        self._counted = count_account(rule)
        self._most: Ints | None = None
        self._known: dict[tuple[int, int], float] = {}

    def most(self) -> Ints:
        """How many steps each client can take in all."""
        if self._most is None:
            bound, r = self.rule.max_epsilon, self.rule
            each = [MOST if bound is None else most_steps(a, self._counted, r.delta, bound) for a in self._answers]
            self._most = np.array(each, dtype=np.int64)[self._kind]
        return self._most

    def affords(self, cohort: Cohort, taken: Ints) -> NDArray[np.bool_]:
        """Which clients of a cohort can do what they are asked to, having taken so many steps so far [N]."""
        found: NDArray[np.bool_] = taken[cohort.clients] + cohort.steps <= self.most()[cohort.clients]
        return found

    def epsilons(self, taken: Ints) -> Floats:
        """Of every client [N]; of one that took no step, what telling n_i costs."""
        return np.array([self._epsilon(*pair) for pair in zip(self._kind.tolist(), taken.tolist(), strict=True)])

    def _epsilon(self, kind: int, steps: int) -> float:
        if (kind, steps) not in self._known:
            account = together([self._counted, {self._answers[kind]: steps}])
            self._known[kind, steps] = epsilon(account, self.rule.delta)
        return self._known[kind, steps]

    def record(self, taken: Ints) -> dict[str, Any]:
        """What a round's record says: the greatest epsilon, and those of the clients where they are few."""
        found = self.epsilons(taken)
        worst = float(found.max())
        if not math.isfinite(worst):
            return {"epsilon": None}
        few = {"epsilon_of_clients": [round(each, 4) for each in found.tolist()]} if len(found) <= FEW else {}
        return {"epsilon": worst, **few}
