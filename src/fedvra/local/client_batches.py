"""What a client is fed in one round: which samples in which order, normalised and augmented."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedvra.core.block import Block
from fedvra.core.cohort import Ints
from fedvra.core.streams import Purpose, stream
from fedvra.data import trees
from fedvra.data.ahead import ahead
from fedvra.data.batches import batch_schedule
from fedvra.data.dataset import FederatedData
from fedvra.data.trees import Tree

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class ClientBatches:
    """Batches for every client, drawn from streams keyed by (seed, round, client)."""

    data: FederatedData
    batch_size: int | None
    dtype: torch.dtype
    channels_last: bool = False
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - devices are immutable
    drop_last: bool = False
    target_cast: Callable[[Tensor], Tensor] | None = None
    """What the loss wants done to each tensor of the targets; None gives them as stored."""

    @property
    def stacks(self) -> bool:
        """Whether batches of as many samples have the same shapes; False where ``collate`` decides."""
        return self.data.dataset.collate is None

    @property
    def augments(self) -> bool:
        """Whether samples are cropped or flipped at random."""
        return self.data.dataset.transform.augments

    @property
    def lazy(self) -> bool:
        """Whether samples are read from elsewhere, so that it pays to read ahead and costs memory to hold many."""
        return self.data.dataset.reader is not None

    def ahead(self, function: Callable[[Item], Made], items: Sequence[Item]) -> Iterator[Made]:
        """``function`` of each of the items; computed by a thread, a little in advance, where that means reading."""
        return ahead(function, items) if self.lazy else map(function, items)

    def batches(self, schedule: Sequence[Ints], rng: np.random.Generator | None) -> Iterator[tuple[Tree, Tree]]:
        """The batches of a schedule, one after the other."""
        return self.ahead(lambda rows: self.batch(rows, rng), schedule)

    def schedule(self, block: Block, client: int, steps: int) -> list[Ints]:
        """The sample numbers of each step's batch: a fresh permutation per epoch."""
        part = self.data.part(client)
        if self.batch_size is None or len(part) <= self.batch_size:
            return [part] * steps  # every step sees all there is: nothing to draw
        rng = stream(block.seed, Purpose.BATCHES, block.round, client)
        return [part[index] for index in batch_schedule(len(part), self.batch_size, steps, rng, self.drop_last)]

    def augmentation(self, block: Block, client: int) -> np.random.Generator | None:
        """The client's stream of crops and flips in this round; None where nothing is augmented."""
        if not self.augments:
            return None
        return stream(block.seed, Purpose.AUGMENT, block.round, client)

    def batch(
        self, rows: Ints, rng: np.random.Generator | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Tree, Tree]:
        """(inputs, targets) of these samples, ready for the model and the loss."""
        inputs, targets = self.data.dataset.take(rows)
        return self.prepared(inputs, rng, dtype), self._ready(targets)

    def test_batch(self, rows: Ints | slice, dtype: torch.dtype | None = None) -> tuple[Tree, Tree]:
        """The same of the test data; copies, for a model may work on its inputs in place."""
        inputs, targets = self.data.dataset.take_test(rows)
        stored = {t.data_ptr() for t in trees.leaves(inputs) if isinstance(t, Tensor)}
        ready = self.prepared(inputs, None, dtype)
        return trees.map(lambda t: t.clone() if t.data_ptr() in stored else t, ready), self._ready(targets)

    def test_batches(self, pieces: Sequence[slice], dtype: torch.dtype) -> Iterator[tuple[Tree, Tree]]:
        """Several of them, one after the other."""
        each = ahead if self.data.dataset.test_reader is not None else map
        return each(lambda piece: self.test_batch(piece, dtype), pieces)

    def prepared(self, samples: Tree, rng: np.random.Generator | None = None, dtype: torch.dtype | None = None) -> Tree:
        """Samples as stored -> what the model takes, in the memory layout that its convolutions are fastest on."""
        batch = self.data.dataset.transform(samples, rng, dtype or self.dtype)
        if not isinstance(batch, Tensor):
            return trees.map(lambda leaf: leaf.to(self.device), batch)
        if self.channels_last and batch.ndim == 4:
            batch = batch.contiguous(memory_format=torch.channels_last)
        return batch.to(self.device)

    def _ready(self, targets: Tree) -> Tree:
        if self.target_cast is not None:
            targets = trees.map(self.target_cast, targets)
        if isinstance(targets, Tensor):
            return targets.to(self.device)
        return trees.map(lambda leaf: leaf.to(self.device), targets)
