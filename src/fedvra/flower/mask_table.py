"""Who is in a masked sum, and what each is to do: a table that all of them are sent, and that each of them checks.

A sum hides its terms only among others of their size. So a client wants to see the whole cohort: that enough of them count,
by their weights and by the work they are given, and that all have keys it has pinned. The table is part of what masks are
derived from: clients that were shown different ones have masks that do not cancel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvra.core.coefficients import reach_of_steps
from fedvra.core.cohort import Floats, Ints
from fedvra.core.errors import require
from fedvra.core.objects import Value
from fedvra.core.validation import check_whole
from fedvra.flower.mask_keys import RosterError

COLUMNS = 7
COVER = 0.01
"""Who weighs less than this share of the weightiest hides nobody, and does not count among the ``least``."""


@dataclass(frozen=True)
class MaskedSum(Value):
    """Have the server see sums of uploads only: ``Strategy(secure=MaskedSum())``; see docs/privacy.md.

    Args:
        least: clients in a sum; the clients have a number of their own (``fedvra-least``) and refuse less than that as well.
        bits: of each number on the wire. With m clients in a round a number has ``(2**(bits - 1) - 1) // m`` levels above 0,
            3276 with 16 bits and ten clients.

    >>> MaskedSum(least=5)
    MaskedSum(least=5, bits=16)
    """

    least: int = 3
    bits: int = 16

    def __post_init__(self) -> None:
        check_whole("MaskedSum: least", self.least, least=3)
        check_whole("MaskedSum: bits", self.bits)
        require(8 <= self.bits <= 32, f"MaskedSum: bits must be 8 to 32, got {self.bits}.")


@dataclass(frozen=True)
class Table:
    """The clients of a sum [M]."""

    clients: Ints
    omega: Floats
    first: Floats
    """Weights of their moves in the first sum; zeros where duals are summed."""
    second: Floats
    """...and in the second; zeros where there is none."""
    steps: Ints
    eta: Floats
    gamma: Floats

    @classmethod
    def of_duals(cls, clients: Ints, omega: Floats) -> Table:
        """For a sum of duals."""
        nothing = np.zeros(len(clients))
        return cls(clients, omega, nothing, nothing, nothing.astype(np.int64), nothing, nothing)

    def tensor(self) -> Tensor:
        """As it is sent: float64, client by client."""
        columns = (self.clients, self.omega, self.first, self.second, self.steps, self.eta, self.gamma)
        return torch.from_numpy(np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1).reshape(-1).copy())

    @classmethod
    def read(cls, sent: Tensor) -> Table:
        """What a server sent; raises RosterError where it is no table."""
        rows = sent.numel() // COLUMNS
        if sent.dtype != torch.float64 or not rows or sent.numel() != rows * COLUMNS:
            raise RosterError("the table of clients does not have the right shape.")
        values = sent.numpy().reshape(rows, COLUMNS)
        whole = values[:, [0, 4]]
        if not (np.isfinite(values).all() and (values >= 0).all() and (whole == np.floor(whole)).all()):
            raise RosterError("the table of clients holds what no client can be.")
        clients, steps = whole[:, 0].astype(np.int64), whole[:, 1].astype(np.int64)
        if len(clients) > 1 and not (np.diff(clients) > 0).all():
            raise RosterError("the table of clients names somebody twice, or not in order.")
        return cls(clients, values[:, 1], values[:, 2], values[:, 3], steps, values[:, 5], values[:, 6])

    @property
    def reach(self) -> Floats:
        """How far the steps of each go; 0 for who is carried out of all bounds, since nothing of that hides another."""
        found = reach_of_steps(self.gamma, self.eta, self.steps.astype(np.float64))
        return np.where(np.isfinite(found), found, 0.0)

    def row(self, client: int) -> int:
        """A client's place in it."""
        if client not in self.clients:
            raise RosterError(f"client {client} is not in the table of clients that it was sent.")
        return int(np.searchsorted(self.clients, client))

    def check(self, pinned: Collection[int], least: int) -> None:
        """Enough clients that count, and none whose key is not pinned; raises RosterError."""
        if unknown := sorted(set(self.clients.tolist()) - set(pinned)):
            raise RosterError(f"the keys of clients {unknown} are not pinned here.")
        if not (self.omega > 0).all():
            raise RosterError("a client of the sum has no weight.")
        first, second = (each * self.reach for each in (self.first, self.second))
        self._cover(self.omega, least, "of this sum count, by weight")  # which losses, buffers and duals go by
        if first.any():
            self._cover(first, least, "of this sum count, by weight and work")
        if not self.second.any():
            return
        self._cover(second, least, "of the second sum count, by weight and work")
        for one, other in set(zip(first.tolist(), second.tolist(), strict=True)):
            self._cover(
                np.abs(first * other - second * one),
                least,
                "would count in a difference of its two sums (with the same number of steps for all, one sum is enough)",
            )

    def _cover(self, share: Floats, least: int, what: str) -> None:
        counted = int((share >= COVER * share.max()).sum()) if share.max() > 0 else 0
        if counted < least:
            raise RosterError(f"{counted} of the {len(self.clients)} clients {what}, and {least} is the least here.")
