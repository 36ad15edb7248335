"""Every client in every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.samplers.base import SAMPLERS, Losses, Participation, Sampler


@dataclass(frozen=True)
class Full(Sampler):
    """Full participation, which VRL-SGD and FedPD demand: p_i^r = 1.

    >>> Full().draw(round=0, seed=0, total=3, losses=None)
    array([0, 1, 2])
    """

    exact = True

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        return np.arange(total, dtype=np.int64)

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        return np.ones(len(clients))

    def check(self, total: int) -> None:
        require(total >= 1, "there must be at least one client.")


SAMPLERS.add("full", Full)
