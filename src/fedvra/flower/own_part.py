"""Which client a node is, and its own data among those of all."""

from __future__ import annotations

import numpy as np
from flwr.app import Context

from fedvra.core.errors import UsageError
from fedvra.data.dataset import Dataset, FederatedData, checked

PARTITION = "partition-id"
"""The key of a SuperNode's --node-config for the client number."""


def own_part(dataset: Dataset, client: int, total: int) -> FederatedData:
    """A node's data as the part of one client among N: the others' parts are empty here, for they are elsewhere."""
    dataset = checked(dataset)
    offsets = np.zeros(total + 1, dtype=np.int64)
    offsets[client + 1 :] = len(dataset)
    return FederatedData(dataset, offsets, np.arange(len(dataset), dtype=np.int64))


def client_number(context: Context, total: int) -> int:
    """As the SuperNode was told."""
    number = context.node_config.get(PARTITION)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < total:
        raise UsageError(
            f"the SuperNode must say which client it is, with --node-config '{PARTITION}=I' and I one of 0 to {total - 1}; "
            f"got {number!r}."
        )
    return number
