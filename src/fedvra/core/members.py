"""Who belongs to a federation: client numbers are given once and for all, and their clients come and go."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedvra.core.cohort import Ints
from fedvra.core.errors import require
from fedvra.core.objects import Value

NEVER = -1
"""In place of a round."""


@dataclass(frozen=True)
class Members(Value):
    """For each client number, after which round its client joined and after which it left.

    A number whose client has left belongs to nobody ever after, so that tables, counts and random streams by client number
    keep their meaning.

    >>> federation = Members.founders(2, numbers=4).join(3, round=10).leave(0, round=20)
    >>> federation.present, federation.numbers.tolist()
    (array([False,  True, False,  True]), [1, 3])
    """

    joined: Ints
    """[N]; NEVER for a number that is still free."""
    left: Ints
    """[N]; NEVER for those who have not."""

    @classmethod
    def founders(cls, clients: int, numbers: int | None = None) -> Members:
        """Clients 0 to ``clients`` - 1, there from the start, and room for others up to ``numbers`` in all."""
        numbers = clients if numbers is None else numbers
        require(clients <= numbers, f"there are {clients} clients and room for {numbers}.")
        return cls(np.where(np.arange(numbers) < clients, 0, NEVER), np.full(numbers, NEVER))

    @property
    def present(self) -> NDArray[np.bool_]:
        """[N], who is there."""
        return np.asarray((self.joined != NEVER) & (self.left == NEVER), dtype=np.bool_)

    @property
    def numbers(self) -> Ints:
        """The numbers of those who are there, ascending."""
        return np.flatnonzero(self.present)

    @property
    def everybody(self) -> bool:
        """Whether every number is that of somebody who was there from the start and still is."""
        return bool((self.joined == 0).all() and (self.left == NEVER).all())

    def join(self, client: int, round: int) -> Members:
        """With a new client, after so many rounds."""
        require(self.joined[client] == NEVER, f"the number {client} is or was another client's.")
        return replace(self, joined=_with(self.joined, client, round))

    def leave(self, client: int, round: int) -> Members:
        """Without a client, for good."""
        require(bool(self.present[client]), f"client {client} is not there.")
        require(
            len(self.numbers) > 1, f"client {client} is the last one: a federation of nobody has no model to learn."
        )
        return replace(self, left=_with(self.left, client, round))

    def with_room(self, numbers: int) -> Members:
        """With free numbers up to ``numbers`` in all."""
        more = numbers - len(self.joined)
        require(more >= 0, f"there are {len(self.joined)} client numbers already: make room for as many, or more.")
        return Members(*(np.append(each, np.full(more, NEVER)) for each in (self.joined, self.left)))


def _with(table: Ints, client: int, value: int) -> Ints:
    changed = table.copy()
    changed[client] = value
    return changed
