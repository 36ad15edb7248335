"""Few classes per client: contiguous pieces of the label-sorted data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Ints
from fedvra.core.streams import Purpose, stream
from fedvra.data.partitions.base import PARTITIONS, UNASSIGNED, Partition, class_codes, client_count, require_count


@dataclass(frozen=True)
class Shards(Partition):
    """Sort by label, cut into N * ``per_client`` shards of equal size, assign ``per_client`` of them to every client.

    With 2 shards per client most clients see two classes. The remainder (fewer samples than shards) stays unassigned.
    Reference: McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017.

    >>> import numpy as np
    >>> labels = np.arange(1000) % 10
    >>> owners = Shards(2).assign(labels, clients=50, seed=0)
    >>> max(len(set(labels[owners == client])) for client in range(50))
    2
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        require_count(self.per_client, "Shards: per_client")

    def assign(self, targets: NDArray[Any], clients: int | None, seed: int) -> Ints:
        samples = len(targets)
        total = client_count(clients, samples, least=self.per_client)
        codes, _ = class_codes(targets, "Shards")
        rng = stream(seed, Purpose.PARTITION)
        shuffled = rng.permutation(samples)
        by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
        shards = total * self.per_client
        size = samples // shards
        shard_owner = np.repeat(np.arange(total), self.per_client)[rng.permutation(shards)]
        owners = np.full(samples, UNASSIGNED, dtype=np.int64)
        owners[by_class[: shards * size]] = np.repeat(shard_owner, size)
        return owners


PARTITIONS.add("shards", Shards)
