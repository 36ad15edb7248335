r"""Record-level differential privacy as a value: what a client does to its gradients before anybody sees what came of them.

In every local step each record is drawn with probability :math:`q_i = B/\tilde n_i` by itself, its gradient is scaled down to
the length C, and Gaussian noise is added to the sum (DP-SGD, Abadi et al. 2016):

.. math:: \tilde g = \frac{1}{B}\Big(\sum_{j \in \text{batch}} g_j\min(1, C/\|g_j\|) + \sigma C z\Big), \qquad z \sim N(0, I)

A record that is added or taken away changes the sum by C at most, and that is all an accountant needs to know. The corrections
of step 11, the dual, the upload and what the server makes of it are functions of such sums and of nothing else that comes from
records: post-processing, which costs no privacy. The divisor B is the expected size of a batch; the true one would tell.

The number of samples n_i would tell too. So it is noised once, and the noised one is what everybody goes by: the server's
weights, the number of steps in an epoch, q_i and B.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedvra.core.calls import Language
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require, unknown_name
from fedvra.core.objects import Value
from fedvra.core.streams import Purpose, noise_key, stream


@dataclass(frozen=True)
class RecordDP(Value):
    """Differential privacy for each record of a client, by DP-SGD in the local steps.

    Two data sets of a client are neighbours where one has a record more. What leaves the client, in all rounds together, is
    (epsilon, delta)-differentially private, with an epsilon for each client that follows from its number of samples and of
    steps; see docs/privacy.md.

    Args:
        clip: C, the greatest length of a record's gradient; longer ones are scaled down to it.
        noise: sigma, the standard deviation of the noise in units of C. 0 adds none and promises nothing.
        delta: should be well below 1/n_i.
        max_epsilon: a client takes part as long as its epsilon stays within this; None sets no bound.
        count_noise: standard deviation of the noise on n_i; 0 tells n_i as it is, and does not protect it.

    >>> RecordDP(clip=1, noise=2, max_epsilon=8).text()
    'record:clip=1,noise=2,max_epsilon=8'
    """

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5
    max_epsilon: float | None = None
    count_noise: float = 5.0

    name: ClassVar[str] = "record"

    def __post_init__(self) -> None:
        require(self.clip > 0, f"RecordDP: clip must be > 0, got {self.clip}.")
        require(0 <= self.noise < math.inf, f"RecordDP: noise must be >= 0, got {self.noise}.")
        require(
            math.isfinite(self.clip) or self.noise == 0,
            "RecordDP: noise is in units of clip, which must be a number then.",
        )
        require(0 < self.delta < 1, f"RecordDP: delta must lie between 0 and 1, got {self.delta}.")
        require(
            self.max_epsilon is None or self.max_epsilon > 0,
            f"RecordDP: max_epsilon must be > 0 or None, got {self.max_epsilon}.",
        )
        require(
            self.max_epsilon is None or self.noise > 0,
            "RecordDP: without noise there is no epsilon to be within max_epsilon: set noise.",
        )
        require(0 <= self.count_noise < math.inf, f"RecordDP: count_noise must be >= 0, got {self.count_noise}.")

    def rates(self, samples: Ints, batch_size: int | None) -> Floats:
        """q_i, with which a record is part of a step's batch, for clients that say they hold so many.

        >>> RecordDP().rates(np.array([20, 200]), batch_size=50)
        array([1.  , 0.25])
        """
        return self.divisors(samples, batch_size) / samples

    def divisors(self, samples: Ints, batch_size: int | None) -> Floats:
        """B, the expected size of a batch."""
        return np.minimum(samples, samples if batch_size is None else batch_size).astype(np.float64)

    def told(self, samples: Ints, draw: Floats) -> Ints:
        """n_i as others are told, from standard normal numbers; at least 1."""
        return np.maximum(np.rint(samples + self.count_noise * draw), 1).astype(np.int64)

    def told_by_all(self, samples: Ints, seed: int) -> Ints:
        """The same for all clients of a simulation."""
        return self.told(samples, stream(seed, Purpose.COUNTS).standard_normal(len(samples)))

    def text(self) -> str:
        """As the command line writes it, for what differs from the default, and for clip and noise in any case."""
        said = [
            f"{f.name}={value:.15g}"
            for f in dataclasses.fields(self)
            if (value := getattr(self, f.name)) is not None and (f.name in ("clip", "noise") or value != f.default)
        ]
        return f"{self.name}:{','.join(said)}"


def parse_privacy(text: str) -> RecordDP:
    """What a text stands for.

    >>> parse_privacy("record:clip=0.5,noise=2")
    RecordDP(clip=0.5, noise=2.0, delta=1e-05, max_epsilon=None, count_noise=5.0)
    """

    def get(name: str) -> type[RecordDP]:
        if name != RecordDP.name:
            raise unknown_name("kind of privacy", name, [RecordDP.name])
        return RecordDP

    return Language("privacy").make(text, get)


def as_privacy(value: object) -> RecordDP | None:
    """From what a user gives: an object, its text, or None."""
    found = parse_privacy(value) if isinstance(value, str) else value
    require(
        found is None or isinstance(found, RecordDP),
        f"privacy must be fv.RecordDP(clip=1, noise=2), its text 'record:clip=1,noise=2', or None, got {value!r}.",
    )
    return found if isinstance(found, RecordDP) else None


class Chance(ABC):
    """Where a client's draws come from: which records are in a batch, and the noise."""

    @abstractmethod
    def uniform(self, count: int) -> Floats:
        """So many numbers between 0 and 1."""

    @abstractmethod
    def normal(self, count: int) -> Floats:
        """So many standard normal numbers."""

    @abstractmethod
    def key(self) -> int:
        """The number from which a model's own draws (dropout and the like) start."""

    @abstractmethod
    def augmentation(self) -> np.random.Generator:
        """Draws crops and flips.

        Those of the k-th record of a batch go by its place in it, and so by which others are in the batch. Who knew them could
        tell more by a record than the clipping length: they have to be as secret as the batch.
        """

    def batch(self, count: int, rate: float) -> Ints:
        """Which of ``count`` records are in a batch: each with probability ``rate`` by itself (Poisson sampling)."""
        return np.flatnonzero(self.uniform(count) < rate)


class FromStreams(Chance):
    """The streams of a simulation: the same numbers wherever a client is run."""

    def __init__(self, seed: int, round: int, client: int) -> None:
        self._records = stream(seed, Purpose.RECORDS, round, client)
        self._noise = stream(seed, Purpose.RECORD_NOISE, round, client)
        self._place = (seed, round, client)

    def uniform(self, count: int) -> Floats:
        return self._records.random(count)

    def normal(self, count: int) -> Floats:
        return self._noise.standard_normal(count)

    def key(self) -> int:
        seed, round, client = self._place
        return noise_key(seed, round, client)

    def augmentation(self) -> np.random.Generator:
        seed, round, client = self._place
        return stream(seed, Purpose.AUGMENT, round, client)


class FromSystem(Chance):
    """The operating system's cryptographic generator: what the seed's owner, who is the adversary, cannot foretell.

    A normal number is (z_1 + ... + z_4)/2, each z from bits of its own. The doubles that a single inversion can give have gaps,
    and from the gaps of a noised number one could tell what was noised (Mironov 2012); over four the gaps close too far to be
    searched (Holohan and Braghin 2021).
    """

    def uniform(self, count: int) -> Floats:
        bits = np.frombuffer(secrets.token_bytes(8 * count), np.uint64)
        return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # never 0 or 1, of which ndtri is infinite

    def normal(self, count: int) -> Floats:
        from scipy.special import ndtri  # type: ignore[import-untyped]

        return np.asarray(ndtri(self.uniform(4 * count)).reshape(4, count).sum(0) / 2)

    def key(self) -> int:
        return secrets.randbits(62)

    def augmentation(self) -> np.random.Generator:
        return np.random.default_rng(secrets.randbits(256))


@dataclass(frozen=True)
class Guard:
    """RecordDP for a block of clients at work."""

    rule: RecordDP
    samples: Ints
    """n_i as the server was told."""
    secret: bool = False
    """Whether draws come from the system, and not from the run's streams."""

    def cut(self, span: slice) -> Guard:
        """For some clients of the block."""
        return replace(self, samples=self.samples[span])

    def chance(self, seed: int, round: int, client: int) -> Chance:
        """Where one of them draws from."""
        return FromSystem() if self.secret else FromStreams(seed, round, client)
