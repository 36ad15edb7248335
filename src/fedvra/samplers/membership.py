"""Any sampler where only some of the client numbers belong to somebody."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.members import Members
from fedvra.samplers.availability import Availability
from fedvra.samplers.base import ByNumber, Losses, Participation, Sampler


def among(sampler: Sampler, members: Members) -> Sampler:
    """The sampler among those who are there; as it is where that is everybody.

    One that holds a table by client number draws from all numbers and leaves out those of nobody, with p_i^r as in its table.
    Any other draws from the members as if there were nobody else: ``Uniform(m)`` takes m of them, p_i^r = m / members.

    >>> from fedvra.samplers import Uniform
    >>> three = Members.founders(4).leave(1, round=5)
    >>> among(Uniform(3), three).draw(round=0, seed=0, total=4, losses=None)
    array([0, 2, 3])
    """
    if members.everybody:
        return sampler
    if isinstance(sampler, Availability):
        return replace(sampler, inner=among(sampler.inner, members))
    if isinstance(sampler, ByNumber) and sampler.by_number:
        return Availability(sampler, table=members.present[None])
    return Ranked(sampler, members)


@dataclass(frozen=True)
class Ranked(Sampler):
    """Draws from the members in the order of their numbers: the k-th of them is client k to the inner sampler."""

    inner: Sampler
    members: Members

    @property
    def exact(self) -> bool:
        return self.inner.exact

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        numbers = self.members.numbers
        return numbers[self.inner.draw(round, seed, len(numbers), lambda ranks: losses(numbers[ranks]))]

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        numbers = self.members.numbers
        return self.inner.probabilities(round, np.searchsorted(numbers, clients), len(numbers), history.of(numbers))

    def check(self, total: int) -> None:
        self.inner.check(len(self.members.numbers))
