"""Everyone draws from the same distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Ints
from fedvra.core.streams import Purpose, stream
from fedvra.data.partitions.base import PARTITIONS, Partition, client_count, deal_in_order


@dataclass(frozen=True)
class IID(Partition):
    """A random floor(n/N) samples for every client; the remainder (fewer than N samples) stays unassigned.

    >>> import numpy as np
    >>> np.bincount(IID().assign(np.zeros(10, dtype=int), clients=5, seed=0))
    array([2, 2, 2, 2, 2])
    """

    def assign(self, targets: NDArray[Any], clients: int | None, seed: int) -> Ints:
        samples = len(targets)
        total = client_count(clients, samples)
        order = stream(seed, Purpose.PARTITION).permutation(samples)
        return deal_in_order(order, np.full(total, samples // total), samples)


PARTITIONS.add("iid", IID)
