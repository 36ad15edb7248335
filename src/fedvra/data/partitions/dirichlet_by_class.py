"""Label and quantity skew at once: every class is shared out among the clients by a Dirichlet draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Ints
from fedvra.core.streams import Purpose, stream
from fedvra.data.partitions.base import (
    PARTITIONS,
    Partition,
    class_codes,
    client_count,
    dirichlet,
    rank_within,
    require_alpha,
    require_count,
)


@dataclass(frozen=True)
class DirichletByClass(Partition):
    r"""Class k is cut into shares :math:`q_k \sim \mathrm{Dir}(\alpha, \dots, \alpha)` over the clients: sizes are unequal.

    Every sample is assigned. Departure from the usual code, which draws again until every client has ``min_size`` samples
    (and may never end): one draw, after which the largest clients give random samples to those that are short.

    >>> import numpy as np
    >>> owners = DirichletByClass(0.3, min_size=5).assign(np.arange(1000) % 10, clients=20, seed=0)
    >>> sizes = np.bincount(owners)
    >>> int(sizes.sum()), bool(sizes.min() >= 5), bool(sizes.max() > sizes.min())
    (1000, True, True)
    """

    alpha: float
    min_size: int = 1

    def __post_init__(self) -> None:
        require_alpha(self.alpha, "DirichletByClass")
        require_count(self.min_size, "DirichletByClass: min_size")

    def assign(self, targets: NDArray[Any], clients: int | None, seed: int) -> Ints:
        samples = len(targets)
        total = client_count(clients, samples, least=self.min_size)
        codes, classes = class_codes(targets, "DirichletByClass")
        rng = stream(seed, Purpose.PARTITION)
        owners = np.empty(samples, dtype=np.int64)
        shuffled = rng.permutation(samples)
        by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
        for members in np.split(by_class, np.cumsum(np.bincount(codes, minlength=classes))[:-1]):
            cuts = np.floor(np.cumsum(dirichlet(self.alpha, total, rng)) * len(members))
            cuts[-1] = len(members)  # whatever the sum of the shares rounds to
            owners[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
        return _top_up(owners, total, self.min_size, rng)


PARTITIONS.add("dirichlet-by-class", DirichletByClass)


def _top_up(owners: Ints, clients: int, min_size: int, rng: np.random.Generator) -> Ints:
    """Move random samples from the largest clients to those below ``min_size``, levelling from the top."""
    sizes = np.bincount(owners, minlength=clients)
    short = np.maximum(min_size - sizes, 0)
    missing = int(short.sum())
    if missing == 0:
        return owners
    # The greatest size cap that frees enough; it exists because clients * min_size <= samples.
    low, high = min_size, int(sizes.max())
    while low < high:
        cap = (low + high + 1) // 2
        low, high = (cap, high) if np.maximum(sizes - cap, 0).sum() >= missing else (low, cap - 1)
    order = rng.permutation(len(owners))
    above = order[rank_within(owners[order]) >= np.maximum(low, np.minimum(sizes, min_size))[owners[order]]]
    given = above[:missing]
    topped = owners.copy()
    topped[given] = np.repeat(np.arange(clients), short)
    return topped
