"""What every sampler answers, and the few helpers they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value
from fedvra.core.registry import Registry
from fedvra.core.validation import check_whole, frozen_array

Losses: TypeAlias = Callable[[Ints], Floats]
"""f_i(x0) of the clients asked for; costly, so only samplers that need it call it, and only for whom they must."""


@dataclass(frozen=True)
class Participation(Value):
    """Who took part in the finished rounds: what a sampler without a formula estimates p_i^r from."""

    rounds: int
    """How many rounds are finished."""
    counts: Ints
    """[N], how many of them each client took part in."""
    since: Ints | None = None
    """[N], after how many of them each client joined; None: all were there from the start."""

    @classmethod
    def none(cls, total: int) -> Participation:
        """The state before the first round."""
        return cls(0, np.zeros(total, dtype=np.int64))

    def after(self, clients: Ints) -> Participation:
        """The state after one more round, in which ``clients`` took part.

        >>> Participation.none(3).after(np.array([0, 2])).counts
        array([1, 0, 1])
        """
        counts = self.counts.copy()
        counts[clients] += 1
        return Participation(self.rounds + 1, counts, self.since)

    def of(self, clients: Ints) -> Participation:
        """The same of some clients only."""
        return Participation(self.rounds, self.counts[clients], None if self.since is None else self.since[clients])

    def seen(self, clients: Ints) -> Ints:
        """How many finished rounds each of ``clients`` could have taken part in."""
        return np.full(len(clients), self.rounds) if self.since is None else self.rounds - self.since[clients]


class Sampler(Value, ABC):
    r"""Draws the cohort A^r of every round and states p_i^r = P(i in A^r), the paper's client sampling probability.

    The coefficients of many algorithms (d = 1/p_i) rest on p_i^r, so it is given in closed form wherever there is one.
    Samplers are values: they hold what was asked for and nothing that changes. Randomness comes from streams keyed by
    (seed, round), so a cohort depends neither on earlier rounds nor on who asks. Call :meth:`check` once before the
    first round; the other methods take its result for granted. A round with nobody in it is legal.

    A new sampler is a frozen dataclass in one file of this folder which ends in ``SAMPLERS.add("name", TheClass)``.
    On the command line a field named ``m`` takes the size of the cohort; other fields are written after the name.

    >>> import fedvra as fv
    >>> len(fv.Uniform(3).draw(round=0, seed=0, total=10, losses=lambda clients: None))
    3
    """

    _read_only: ClassVar[bool] = True

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether p_i^r comes from a formula (True) or is an estimate or assumption (False)."""

    @abstractmethod
    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        """A^r: client numbers in 0..N-1 (N = ``total``), ascending, each at most once, perhaps none."""

    @abstractmethod
    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        """p_i^r, in (0, 1], of ``clients``, all of whom take part in this round."""

    @abstractmethod
    def check(self, total: int) -> None:
        """Raise a :class:`UsageError` if this sampler cannot serve ``total`` clients."""


class ByNumber(ABC):
    """For samplers that may hold a table by client number, which keeps its meaning when clients join and leave."""

    @property
    @abstractmethod
    def by_number(self) -> bool:
        """Whether this one holds such a table."""


SAMPLERS: Registry[type[Sampler]] = Registry("sampler", "fedvra.samplers", group="fedvra.samplers")
"""Every sampler by its name on the command line."""


def random_subset(rng: np.random.Generator, total: int, size: int) -> Ints:
    """``size`` of 0..total-1, every such set equally likely, ascending; O(size) for small sets."""
    # shuffle=False lets numpy use Floyd's method, which never builds the list of all clients.
    return np.sort(rng.choice(total, size, replace=False, shuffle=False))


def as_clients(values: Any, what: str) -> Ints:
    """Client numbers as a read-only array, in the order given."""
    array = frozen_array(values, None, what)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(f"{what} must be a list of client numbers (whole numbers), got {values!r}.")
    return frozen_array(array, np.int64, what)


def check_size(m: object, most: int, most_is: str) -> None:
    """Require that a cohort can have m clients."""
    size = check_whole("the size of the cohort m", m)
    require(size <= most, f"the size of the cohort m = {m} is more than {most_is}, {most}; choose at most {most}.")


def check_clients(what: str, clients: Ints, total: int) -> None:
    """Require distinct client numbers in 0..total-1."""
    outside = clients[(clients < 0) | (clients >= total)]
    if outside.size:
        raise UsageError(f"{what}: there is no client {outside[0]}; the clients are 0 to {total - 1}.")
    numbers, counts = np.unique(clients, return_counts=True)
    if (counts > 1).any():
        raise UsageError(f"{what}: client {numbers[counts > 1][0]} is named more than once.")
