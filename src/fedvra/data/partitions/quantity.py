"""Quantity skew: everyone draws from the same distribution, some hold far more than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream
from fedvra.data.partitions.base import (
    PARTITIONS,
    Partition,
    client_count,
    deal_in_order,
    dirichlet,
    require_alpha,
    require_count,
)


@dataclass(frozen=True)
class QuantitySkew(Partition):
    r"""Random samples, unequal numbers of them: every client gets ``min_size``, the rest is shared out by

    - ``alpha``: shares drawn from Dir(alpha, ..., alpha) (small: a few clients hold nearly all), or
    - ``power``: shares proportional to :math:`k^{-\text{power}}`, k = 1..N, over the clients in a random order (Zipf).

    Give exactly one of the two. Every sample is assigned.

    >>> import numpy as np
    >>> sizes = np.bincount(QuantitySkew(power=1.5).assign(np.zeros(1000), clients=10, seed=0))
    >>> int(sizes.sum()), bool(sizes.max() > 10 * sizes.min())
    (1000, True)
    """

    alpha: float | None = None
    power: float | None = None
    min_size: int = 1

    def __post_init__(self) -> None:
        require(
            (self.alpha is None) != (self.power is None),
            "QuantitySkew: give either alpha (Dirichlet shares) or power (Zipf shares), and not both.",
        )
        if self.alpha is not None:
            require_alpha(self.alpha, "QuantitySkew")
        if self.power is not None:
            require(0 <= self.power <= 100, f"QuantitySkew: power must be between 0 and 100, got {self.power:g}.")
        require_count(self.min_size, "QuantitySkew: min_size")

    def assign(self, targets: NDArray[Any], clients: int | None, seed: int) -> Ints:
        samples = len(targets)
        total = client_count(clients, samples, least=self.min_size)
        rng = stream(seed, Purpose.PARTITION)
        order = rng.permutation(samples)
        sizes = self.min_size + _round_to_sum(self._shares(total, rng), samples - total * self.min_size)
        return deal_in_order(order, sizes, samples)

    def _shares(self, clients: int, rng: np.random.Generator) -> Floats:
        if self.alpha is not None:
            return dirichlet(self.alpha, clients, rng)
        assert self.power is not None
        weights = (1.0 + rng.permutation(clients)) ** -self.power
        return np.asarray(weights / weights.sum(), dtype=np.float64)


PARTITIONS.add("quantity", QuantitySkew)


def _round_to_sum(shares: Floats, amount: int) -> Ints:
    """Whole numbers nearest to shares * amount that add up to amount (largest remainders are rounded up)."""
    exact = shares * amount
    whole = np.floor(exact).astype(np.int64)
    short = amount - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:short]] += 1
    return whole
