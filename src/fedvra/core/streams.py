"""Random numbers that do not depend on who asks first.

Every draw comes from a stream keyed by (seed, round, client, purpose), never from global state. So the number of worker
processes, the order in which clients are run, a crash and a resume all leave every batch, crop and cohort as they were.

Philox is a counter-based generator: the key holds (seed, purpose) and the high words of its 256-bit counter hold
(client, round), so distinct streams are distinct stretches of one sequence of length 2**128 each: no hashing, no collisions.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

SERVER = (1 << 64) - 1
"""The client number of draws that belong to no client (cohorts, partitions, the initial model)."""


class Purpose(IntEnum):
    """What a stream is for. Append only: renumbering changes every published result."""

    COHORT = 1
    WORK = 2
    BATCHES = 3
    AUGMENT = 4
    INIT = 5
    PARTITION = 6
    DROP = 7
    SKIP = 8
    MODEL_NOISE = 9
    CANDIDATES = 10
    LABELS = 11
    SYNTHETIC = 12
    SEEDING = 13
    PROBE = 14
    CHECK = 15
    CLOCK = 16
    HELD_OUT = 17
    ROUNDING = 18
    RECORDS = 19
    RECORD_NOISE = 20
    COUNTS = 21


def stream(seed: int, purpose: Purpose, round: int = 0, client: int = SERVER) -> np.random.Generator:
    """The generator of one (seed, round, client, purpose).

    >>> a, b = stream(0, Purpose.BATCHES, round=3, client=7), stream(0, Purpose.BATCHES, round=3, client=7)
    >>> bool((a.permutation(50) == b.permutation(50)).all())
    True
    """
    key = np.array([int(seed) & SERVER, int(purpose)], dtype=np.uint64)
    counter = np.array([0, 0, int(client) & SERVER, int(round) & SERVER], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def noise_key(seed: int, round: int, client: int) -> int:
    """The number from which a model's own random draws (dropout and the like) start."""
    return int(stream(seed, Purpose.MODEL_NOISE, round, client).integers(2**62))
