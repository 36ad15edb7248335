"""Sums of duals under masks: what audits go by, and how lam is found anew when somebody has left.

No single dual is reported where sums are masked, so none can be put back either: repair from the others would show the server
the one that is missing. What can be had is sum_i omega_i*lam_i over all who hold a dual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.core.errors import FedvraError
from fedvra.core.whole import WIDE, Ring, to_real
from fedvra.flower.errands import ask, make_order
from fedvra.flower.mask_table import Table
from fedvra.flower.masked_server import alike, read_words
from fedvra.flower.protocol import Answer, Errand, Status, printable
from fedvra.flower.repair import Audit
from fedvra.flower.uploads import RefusedUploadError

if TYPE_CHECKING:
    from fedvra.flower.server_books import Books
    from fedvra.flower.strategy import Strategy


def masked_audit(strategy: Strategy, grid: Grid) -> Audit:
    """Measure lam - sum_i omega_i*lam_i; it is exactly 0 where everybody is honest."""
    books = strategy.books
    norm, nothing = float(torch.linalg.vector_norm(books.lam.double())), math.nan
    try:
        total = sum_of_duals(strategy, grid, holders(books))
    except NoSumError as missing:
        return Audit(nothing, norm, missing.why, nothing, [])
    held = torch.zeros_like(total) if books.whole is None else books.whole
    return Audit(float(torch.linalg.vector_norm(to_real(held - total, torch.float64))), norm, {}, norm, [])


def holders(books: Books) -> Ints:
    """Who may hold a dual: all that were ever asked to take part, so that nobody whom a client has met is left out."""
    return np.flatnonzero(books.members.present & (books.counts > 0))


class NoSumError(FedvraError):
    """Somebody did not answer, so there is no sum; who, and why."""

    def __init__(self, why: Mapping[int, str]) -> None:
        super().__init__(f"there is no sum without clients {sorted(why)}.")
        self.why = dict(why)


class _Part(NamedTuple):
    """What became of one client's part of a sum."""

    why: str = ""
    lost: bool = False


def sum_of_duals(strategy: Strategy, grid: Grid, clients: Ints) -> Tensor:
    """sum_i omega_i*lam_i over these clients in grains.

    Raises:
        NoSumError: not all of them answered.
    """
    secure, width = strategy.secure, len(strategy.books.x0)
    assert secure is not None
    if len(clients) < secure.least:
        raise NoSumError(dict.fromkeys(clients.tolist() or [-1], f"{secure.least} is the least of a sum"))
    table = Table.of_duals(clients, strategy.plan.omega[clients])
    orders = alike([make_order(strategy, Errand.REPORT, int(client)) for client in clients], table, strategy.books)
    orders = [replace(order, bits=secure.bits) for order in orders]
    ring, total = Ring(WIDE), np.zeros(width, np.uint64)

    def add(answer: Answer | str) -> _Part:
        """Into the sum at once: it is exact in whatever order they come."""
        if isinstance(answer, str) or answer.status != Status.DONE:
            lost = isinstance(answer, Answer) and answer.status == Status.LOST
            return _Part(answer if isinstance(answer, str) else printable(answer.reason) or "refused", lost)
        try:
            total[:] = ring.add(total, read_words(answer, "lam", ring, width))
        except RefusedUploadError as refusal:
            return _Part(str(refusal))
        return _Part()

    parts = dict(zip(clients.tolist(), ask(strategy, grid, orders, add), strict=True))
    strategy.lost |= {client for client, part in parts.items() if part.lost}
    if why := {client: part.why for client, part in parts.items() if part.why}:
        raise NoSumError(why)
    return ring.signed(total)
