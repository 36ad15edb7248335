"""m clients out of N, every set of m equally likely: the paper's sampler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.streams import Purpose, stream
from fedvra.samplers.base import SAMPLERS, Losses, Participation, Sampler, check_size, random_subset


@dataclass(frozen=True)
class Uniform(Sampler):
    r"""A cohort of exactly m clients, uniformly without replacement: p_i^r = m / N.

    Args:
        m: the size of the cohort, 1 <= m <= N.

    >>> Uniform(2).draw(round=0, seed=0, total=10, losses=None).shape
    (2,)
    """

    m: int
    exact = True

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        return random_subset(stream(seed, Purpose.COHORT, round), total, self.m)

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        return np.full(len(clients), self.m / total)

    def check(self, total: int) -> None:
        check_size(self.m, total, "the number of clients")


SAMPLERS.add("uniform", Uniform)
