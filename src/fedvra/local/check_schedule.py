"""When a replayed step is compared with autograd: settled by the server, from what every run of the same seed knows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Cohort, Ints
from fedvra.core.streams import Purpose, stream

PER_STEP = 0.0002
"""How often: a check costs ten to thirty steps, so this adds about half a per cent."""


class CheckSchedule:
    """Whoever brings a size of batch not met before is checked, and now and then another.

    It follows from the round and from who took part so far alone: a failure is found by every run alike, whatever the number of
    workers and however often it was resumed.
    """

    def __init__(self, seed: int, samples: Ints, batch_size: int | None) -> None:
        self.seed, self.samples = seed, samples
        self.size = batch_size or int(samples.max(initial=1))
        self._met: set[int] | None = None

    def due(self, cohort: Cohort, counts: Ints) -> NDArray[np.bool_]:
        """Whose first step is to be checked, [M]; ``counts`` says how often each client took part before this round."""
        if self._met is None:
            self._met = set(self._sizes(self.samples[counts > 0]).tolist())
        check = np.zeros(len(cohort), dtype=bool)
        sizes, first = np.unique(self._sizes(cohort.samples), return_index=True)
        for size, k in zip(sizes.tolist(), first.tolist(), strict=True):
            check[k] = size not in self._met
            self._met.add(size)
        rng = stream(self.seed, Purpose.CHECK, cohort.round)
        if rng.random() < PER_STEP * cohort.steps.sum():
            check[rng.integers(len(cohort))] = True
        return check

    def _sizes(self, samples: Ints) -> Ints:
        """For each client a number that tells which sizes of batches it has."""
        return np.where(samples <= self.size, samples, self.size + samples % self.size)
