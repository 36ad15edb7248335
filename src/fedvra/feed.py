"""What a client is fed in one round: which samples in which order, normalised and augmented."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvra.cohort import Ints
from fedvra.data.batches import batch_schedule
from fedvra.data.dataset import FederatedData
from fedvra.problems.base import Block
from fedvra.streams import Purpose, stream


@dataclass(frozen=True)
class Feed:
    """Batches for every client, drawn from streams keyed by (seed, round, client)."""

    data: FederatedData
    batch_size: int | None
    dtype: torch.dtype
    channels_last: bool = False
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - devices are immutable

    def schedule(self, block: Block, client: int, steps: int) -> list[Ints]:
        """The sample numbers of each step's batch: a fresh permutation per epoch."""
        part = self.data.part(client)
        if self.batch_size is None or len(part) <= self.batch_size:
            return [part] * steps  # every step sees all there is: nothing to draw
        rng = stream(block.seed, Purpose.BATCHES, block.round, client)
        return [part[index] for index in batch_schedule(len(part), self.batch_size, steps, rng)]

    def augmentation(self, block: Block, client: int) -> np.random.Generator | None:
        """The client's stream of crops and flips in this round; None where nothing is augmented."""
        if not self.data.dataset.transform.augments:
            return None
        return stream(block.seed, Purpose.AUGMENT, block.round, client)

    def inputs(self, rows: Ints, rng: np.random.Generator | None = None) -> Tensor:
        return self.prepared(self.data.dataset.inputs.index_select(0, torch.from_numpy(rows)), rng)

    def prepared(
        self, samples: Tensor, rng: np.random.Generator | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Samples as stored -> what the model takes, in the memory layout that its convolutions are fastest on."""
        batch = self.data.dataset.transform(samples, rng, dtype or self.dtype)
        if self.channels_last:
            batch = batch.contiguous(memory_format=torch.channels_last)
        return batch.to(self.device)

    def targets(self, rows: Ints) -> Tensor:
        return self.data.dataset.targets.index_select(0, torch.from_numpy(rows)).to(self.device)
