"""A small data set of tokens with masks, labels and tags; a feed of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import fedvra as fv
from fedvra.data import trees
from fedvra.local.client_batches import ClientBatches

N = 12
LABELS = np.arange(N) % 3
RNG = np.random.default_rng(0)
IDS, MASK, AGE = RNG.integers(100, size=(N, 5)), RNG.random((N, 5)) < 0.5, RNG.normal(size=N)
TOKENS = {"ids": IDS, "mask": MASK, "more": {"age": AGE}}
TAGS = np.where(MASK, IDS % 4, -100)


def feed(data: fv.FederatedData, **options: Any) -> ClientBatches:
    return ClientBatches(data, **{"batch_size": 4, "dtype": torch.float32, **options})


def same(left: Any, right: Any) -> bool:
    return [path for path, _ in trees.named(left, "")] == [path for path, _ in trees.named(right, "")] and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(trees.leaves(left), trees.leaves(right), strict=True)
    )


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]
