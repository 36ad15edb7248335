"""Groups of clients, one after the other, round and round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import UsageError, require
from fedvra.core.streams import Purpose, stream
from fedvra.samplers.base import (
    SAMPLERS,
    ByNumber,
    Losses,
    Participation,
    Sampler,
    as_clients,
    check_clients,
    check_size,
)


@dataclass(frozen=True)
class Cyclic(Sampler, ByNumber):
    r"""The clients are parted into G groups that take turns: each client takes part once in every pass of G rounds.

    .. math:: p_i^r = 1 / G

    With ``reshuffle`` this is the probability, over the seed, of every single round. Without it the cycle is
    deterministic and p_i^r in the strict sense would be 0 or 1; what is given is the long-run frequency, since with it
    (d = 1/p) the clients count over a pass of G rounds for as much as in G rounds of full participation.

    Args:
        m: the size of a cohort. The clients are cut, by number, into G = ceil(N / m) groups as equal as can be, so
            that when m does not divide N some cohorts have one client less.
        groups: the groups themselves instead of m; every client in exactly one.
        reshuffle: start every pass anew in a random way: with ``m`` the clients are divided into new groups, given
            ``groups`` stay as they are and their order is redrawn.

    >>> cycle = Cyclic(groups=[[0, 3], [1, 2]])
    >>> [cycle.draw(r, seed=0, total=4, losses=None).tolist() for r in range(3)]
    [[0, 3], [1, 2], [0, 3]]
    """

    m: int | None = None
    groups: Sequence[Sequence[int]] | None = None
    reshuffle: bool = False
    exact = True

    def __post_init__(self) -> None:
        if self.groups is not None:
            groups = tuple(
                tuple(as_clients(group, f"Cyclic: group {g}").tolist()) for g, group in enumerate(self.groups)
            )
            object.__setattr__(self, "groups", groups)

    @property
    def by_number(self) -> bool:
        return self.groups is not None

    def draw(self, round: int, seed: int, total: int, losses: Losses) -> Ints:
        count = self._count(total)
        lap, turn = divmod(round, count)
        everyone = None
        if self.reshuffle:
            rng = stream(seed, Purpose.COHORT, lap)
            # The order of the groups is redrawn in both cases: it makes p = 1/G exact when the groups differ in size.
            turn = int(rng.permutation(count)[turn])
            everyone = rng.permutation(total) if self.groups is None else None
        if self.groups is not None:
            return np.sort(np.array(self.groups[turn], dtype=np.int64))
        first, end = turn * total // count, (turn + 1) * total // count
        return np.arange(first, end) if everyone is None else np.sort(everyone[first:end])

    def probabilities(self, round: int, clients: Ints, total: int, history: Participation) -> Floats:
        return np.full(len(clients), 1 / self._count(total))

    def check(self, total: int) -> None:
        require((self.m is None) != (self.groups is None), "Cyclic: give either m or groups, and not both.")
        if self.groups is None:
            check_size(self.m, total, "the number of clients")
            return
        members = np.array([i for group in self.groups for i in group], dtype=np.int64)
        check_clients("Cyclic: groups", members, total)
        absent = np.setdiff1d(np.arange(total), members)
        if absent.size:
            raise UsageError(f"Cyclic: every client must be in a group, but client {absent[0]} is in none.")

    def _count(self, total: int) -> int:
        """G, the number of groups."""
        if self.groups is not None:
            return len(self.groups)
        assert self.m is not None
        return -(-total // self.m)


SAMPLERS.add("cyclic", Cyclic)
