"""Each client decides for itself, by the toss of its own coin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.core.validation import check_probabilities, frozen_array
from fedvra.samplers.base import (
    SAMPLERS,
    ByNumber,
    Losses,
    Participation,
    Sampler,
    random_subset,
)


@dataclass(frozen=True)
class Bernoulli(Sampler, ByNumber):
    r"""Client i takes part with probability p_i, independently of the others: p_i^r = p_i.

    The size of the cohort varies (mean sum_i p_i, variance sum_i p_i (1 - p_i)) and may be 0.

    Args:
        p: one probability for all, or a table [N]; in (0, 1].
        to: where p is one number, that of the last client: p_i runs in equal steps from ``p`` for client 0 to ``to`` for client
            N - 1. Some then take part rarely and others often, which can be written on a command line
            (``bernoulli:0.01,to=0.19``).

    >>> Bernoulli(1.0).draw(round=0, seed=0, total=3, losses=None)
    array([0, 1, 2])
    >>> Bernoulli(0.1, to=0.5).probabilities(round=0, clients=np.arange(3), total=3, history=None)
    array([0.1, 0.3, 0.5])
    """

    p: float | Sequence[float] | Floats
    to: float | None = None
    exact = True

    def __post_init__(self) -> None:
        p = frozen_array(self.p, np.float64, "Bernoulli: p")
        object.__setattr__(self, "p", p if p.ndim else float(p))

    @property
    def by_number(self) -> bool:
        return np.ndim(self.p) > 0 or self.to is not None

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        rng = stream(seed, Purpose.COHORT, round)
        p = self._table(total)
        if p.ndim == 0:
            # N equal coins: their number of heads is binomial and, given it, every set of that size is equally likely.
            # The same law as N tosses, at the cost of the heads alone.
            return random_subset(rng, total, int(rng.binomial(total, float(p))))
        return np.flatnonzero(rng.random(total) < p)

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        return np.broadcast_to(self._table(total), (total,))[clients]

    def check(self, total: int) -> None:
        require(
            self.to is None or np.ndim(self.p) == 0,
            "Bernoulli: to belongs to p as one number, of the first client; leave it out where p is a table.",
        )
        p = self._table(total)
        require(
            p.shape in ((), (total,)),
            f"Bernoulli: p must be one number or a table of {total} (one per client), got shape {list(p.shape)}.",
        )
        check_probabilities("Bernoulli: p", p)

    def _table(self, total: int) -> Floats:
        """One probability [], or one per client [N]."""
        return np.asarray(self.p) if self.to is None else np.linspace(float(np.asarray(self.p)), self.to, total)


SAMPLERS.add("bernoulli", Bernoulli)
