"""Each client decides for itself, by the toss of its own coin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedvra.checks import check_probabilities, frozen_array
from fedvra.cohort import Floats, Ints
from fedvra.errors import require
from fedvra.samplers.base import (
    SAMPLERS,
    Losses,
    Participation,
    Sampler,
    random_subset,
)
from fedvra.streams import Purpose, stream


@dataclass(frozen=True, eq=False)
class Bernoulli(Sampler):
    r"""Client i takes part with probability p_i, independently of the others: p_i^r = p_i.

    The size of the cohort varies (mean sum_i p_i, variance sum_i p_i (1 - p_i)) and may be 0.

    Args:
        p: one probability for all, or a table [N]; in (0, 1].

    >>> Bernoulli(1.0).draw(round=0, seed=0, total=3, losses=None)
    array([0, 1, 2])
    """

    p: float | Sequence[float] | Floats
    exact = True

    def __post_init__(self) -> None:
        p = frozen_array(self.p, np.float64, "Bernoulli: p")
        object.__setattr__(self, "p", p if p.ndim else float(p))

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        rng = stream(seed, Purpose.COHORT, round)
        p = np.asarray(self.p)
        if p.ndim == 0:
            # N equal coins: their number of heads is binomial and, given it, every set of that size is equally likely.
            # The same law as N tosses, at the cost of the heads alone.
            return random_subset(rng, total, int(rng.binomial(total, float(p))))
        return np.flatnonzero(rng.random(total) < p)

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        return np.broadcast_to(np.asarray(self.p), (total,))[clients]

    def check(self, total: int) -> None:
        p = np.asarray(self.p)
        require(
            p.shape in ((), (total,)),
            f"Bernoulli: p must be one number or a table of {total} (one per client), got shape {list(p.shape)}.",
        )
        check_probabilities("Bernoulli: p", p)


SAMPLERS.add("bernoulli", Bernoulli)
