"""A cohort of fixed size in which some clients are likelier than others, with inclusion probabilities that are exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_probabilities, frozen_array
from fedvra.samplers.base import SAMPLERS, ByNumber, Losses, Participation, Sampler

TOLERANCE = 1e-9
"""How far sum_i p_i may be from a whole number, relative to it: room for rounding, not for a wrong table."""


@dataclass(frozen=True)
class Weighted(Sampler, ByNumber):
    r"""m = sum_i p_i clients without replacement, client i with probability exactly p_i^r = p_i.

    Madow's systematic sampling over a random order: lay the clients in random order as intervals of length p_i along
    [0, m), draw u uniformly from [0, 1), and take the clients whose intervals hold u, u + 1, ..., u + m - 1. Exactly
    one point in every stretch of length 1 gives P(i in A^r) = p_i; no interval is longer than 1, so nobody is taken
    twice. (Drawing one after another without replacement, as ``Generator.choice(p=...)`` does, has other inclusion
    probabilities than its weights, and no formula for them.)

    Joint probabilities P(i, j in A^r) come from averaging over orders and have no short formula. When all p_i are equal
    they are m(m-1) / (N(N-1)), as for :class:`Uniform`; else close to (m-1)/m p_i p_j while every p_i is small, and 0
    for pairs that cannot both fit.

    Args:
        p: table [N] of inclusion probabilities in (0, 1] whose sum is a whole number, the size of the cohort.
            To sample in proportion to sizes n_i, give ``m * n / n.sum()`` (each at most 1).

    >>> Weighted([0.5, 0.5, 1.0]).draw(round=0, seed=0, total=3, losses=None).shape
    (2,)

    Reference: Madow, "On the theory of systematic sampling, II", Annals of Mathematical Statistics 20 (1949).
    """

    p: Sequence[float] | Floats
    exact = True
    by_number = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", frozen_array(self.p, np.float64, "Weighted: p"))

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        rng = stream(seed, Purpose.COHORT, round)
        order = rng.permutation(total)
        hit = systematic(np.asarray(self.p)[order], rng.random())
        return np.sort(order[hit])

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        return np.asarray(self.p)[clients]

    def check(self, total: int) -> None:
        p = np.asarray(self.p)
        require(
            p.shape == (total,),
            f"Weighted: p must be a table of {total} numbers (one per client), got shape {list(p.shape)}.",
        )
        check_probabilities("Weighted: p", p)
        size = float(p.sum())
        nearest = max(1.0, float(np.rint(size)))
        require(
            abs(size - nearest) <= TOLERANCE * nearest,
            f"Weighted: the p_i sum to {size:.12g}, but the sum is the size of the cohort and must be a whole number; "
            f"scale them, e.g. p * {nearest:g} / p.sum() (each must stay at most 1).",
        )


def systematic(p: Floats, u: float) -> Ints:
    """Which of the intervals [p_1 + ... + p_{k-1}, p_1 + ... + p_k) hold one of u, u + 1, ..., u + m - 1.

    >>> systematic(np.array([0.5, 0.5, 0.75, 0.25]), 0.25), systematic(np.array([0.5, 0.5, 0.75, 0.25]), 0.75)
    (array([0, 2]), array([1, 3]))
    """
    ends = np.cumsum(p)
    turn = np.arange(int(np.rint(ends[-1])))
    hit = np.searchsorted(ends, u + turn, side="right")
    # Rounding in these sums can put a point just over the edge of its interval, so that one is hit twice or the last point
    # falls off the end. Moving on to the next interval, and back from the end, keeps the cohort at m clients even then.
    hit = np.maximum.accumulate(hit - turn) + turn
    return np.minimum(hit, len(p) - len(turn) + turn).astype(np.int64)


SAMPLERS.add("weighted", Weighted)
