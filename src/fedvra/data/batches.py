"""In which order a client reads its samples."""

from __future__ import annotations

import numpy as np

from fedvra.core.cohort import Ints
from fedvra.core.errors import require


def batch_schedule(
    samples: int, batch_size: int | None, steps: int, rng: np.random.Generator, drop_last: bool = False
) -> list[Ints]:
    """The index arrays, into 0..samples-1, of ``steps`` consecutive batches.

    Every epoch is a fresh permutation cut into batches; its last batch is smaller when the sizes do not divide, and left
    out with ``drop_last`` unless it is the only one. A schedule may stop in the middle of an epoch. ``batch_size=None`` means
    the full batch: every sample at every step, in ascending order and without drawing a number.

    >>> schedule = batch_schedule(5, 2, 4, np.random.default_rng(0))
    >>> [len(batch) for batch in schedule]
    [2, 2, 1, 2]
    >>> sorted(np.concatenate(schedule[:3]).tolist())
    [0, 1, 2, 3, 4]
    >>> [len(batch) for batch in batch_schedule(5, 2, 4, np.random.default_rng(0), drop_last=True)]
    [2, 2, 2, 2]
    """
    require(samples >= 1, "a client without samples cannot form a batch: give it data or leave it out of the split.")
    require(steps >= 0, f"the number of local steps must be 0 or more, got {steps}.")
    if batch_size is None:
        everything = np.arange(samples, dtype=np.int64)
        return [everything] * steps
    require(batch_size >= 1, f"the batch size must be 1 or more (or none, for the full batch), got {batch_size}.")
    used = samples - samples % batch_size if drop_last and samples >= batch_size else samples
    schedule: list[Ints] = []
    while len(schedule) < steps:
        order = rng.permutation(samples)
        starts = range(0, used, batch_size)[: steps - len(schedule)]
        schedule.extend(order[start : start + batch_size] for start in starts)
    return schedule
