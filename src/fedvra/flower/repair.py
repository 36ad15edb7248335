"""Is lam = sum_i omega_i*lam_i, and what to do for a client that lost its lam_i.

The server never needs a single lam_i, only their weighted sum lam. That sum is also what makes a lost one recoverable:

*With a shadow* the server has followed every lam_i from the uploads it counted (step 14 uses nothing else), and sends the
client its own back, bit by bit what it had.

*Without*, the others report theirs, and what is missing from lam is what the lost ones add up to:

    sum_{i lost} omega_i*lam_i = lam - sum_{j not lost} omega_j*lam_j

For one lost client that is its dual, up to rounding. For several only the sum is known; each gets the same share,
lam_i = (remainder) / (sum of the lost omega), the choice of least weighted norm, and the invariant holds as before. It needs
every other client that was ever counted to be reachable; until they are, the lost ones sit out.

What stayed with the client besides (y_i, local buffers) is no part of lam and starts anew.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import partial
from logging import INFO, WARNING
from typing import TYPE_CHECKING

import torch
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedvra.flower.client_ledger import new_ticket
from fedvra.flower.errands import ask, make_order
from fedvra.flower.protocol import Answer, Errand, Status, printable
from fedvra.flower.spool import Spool, Stored
from fedvra.flower.uploads import RefusedUploadError, checked_vector

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy

TOLERANCE = 1e-4
"""What rounding in float32 may add up to over thousands of rounds, as a share of the duals."""


@dataclass(frozen=True)
class Audit:
    """What the clients hold against what the server counted."""

    gap: float
    """\\|lam - sum_i omega_i*lam_i\\| over the clients that reported."""
    norm: float
    """\\|lam\\|."""
    missing: dict[int, str]
    """Clients whose dual could not be had, and why; the gap means little unless this is empty."""
    scale: float
    """sum_i omega_i*\\|lam_i\\|, beside which rounding is to be seen: lam itself tends to zero."""
    differ: list[int]
    """Clients whose dual is not the one that follows from their uploads, where the server keeps a shadow."""

    @property
    def relative(self) -> float:
        """gap / norm; 0 where both are 0."""
        return self.gap / self.norm if self.norm else self.gap

    @property
    def exact(self) -> bool:
        """Do the books agree, up to rounding? Somebody whose dual and uploads tell different stories shows here."""
        return self.gap <= TOLERANCE * self.scale and not self.differ

    def tell(self) -> None:
        """Log what was found: a warning where something is wrong, and where it cannot be known."""
        if self.missing:
            log(WARNING, "audit: incomplete, no dual from clients %s", sorted(self.missing))
        elif self.exact:
            log(INFO, "audit: |lam - sum omega_i lam_i| is %.1e of %.1e, as it should be", self.gap, self.scale)
        else:
            log(
                WARNING,
                "audit: |lam - sum omega_i lam_i| is %.1e of %.1e: the duals of %s are not what was uploaded",
                self.gap,
                self.scale,
                f"clients {self.differ}" if self.differ else "some clients",
            )


def audit(strategy: Strategy, grid: Grid) -> Audit:
    """Measure lam - sum_i omega_i*lam_i. Clients never counted have lam_i = 0 and are not asked."""
    found = reported(strategy, grid)
    lam = strategy.books.lam.double()
    return Audit(_norm(lam - found.total), _norm(lam), found.missing, found.scale, found.differ)


def repair(strategy: Strategy, grid: Grid) -> None:
    """Find a dual for every client of ``strategy.lost``, to go along with the next message to it."""
    books, lost = strategy.books, strategy.lost
    if strategy.shadow:
        books.restores.update({client: books.shadow.get(client, torch.zeros_like(books.x0)) for client in lost})
    else:
        found = reported(strategy, grid, leave_out=lost)
        if waiting := found.missing.keys() - lost:
            log(WARNING, "clients %s await repair until %s report", sorted(lost), sorted(waiting))
            return
        weight = float(sum(strategy.plan.omega[client] for client in lost))
        remainder = books.lam.double() - found.total
        share = remainder / weight if weight else torch.zeros_like(remainder)
        books.restores.update({client: share.to(books.lam.dtype, copy=True) for client in lost})
    books.tickets.update({client: new_ticket() for client in lost})
    log(INFO, "the duals of clients %s will be restored", sorted(lost))
    lost.clear()
    strategy.save()  # before the state is sent: a server that dies here must know the new tickets


@dataclass
class Reported:
    """What the clients said of their duals."""

    total: Tensor
    """sum_i omega_i*lam_i over those who reported."""
    scale: float
    missing: dict[int, str]
    differ: list[int]


def reported(
    strategy: Strategy, grid: Grid, leave_out: Set[int] = frozenset(), only: Set[int] | None = None
) -> Reported:
    """The duals of the clients that were ever counted and are not left out, or of some of them only.

    A client that turns out to have lost its state is added to ``strategy.lost``.
    """
    books, omega = strategy.books, strategy.plan.omega
    counted = (client for client, ticket in sorted(books.tickets.items()) if ticket)
    asked = [client for client in counted if client not in leave_out and (only is None or client in only)]
    found = Reported(torch.zeros_like(books.lam, dtype=torch.float64), 0.0, {}, [])
    orders = [make_order(strategy, Errand.REPORT, client) for client in asked]
    with Spool(strategy.folder) as spool:
        duals = ask(strategy, grid, orders, partial(_dual, like=books.lam, spool=spool))
        for client, dual in zip(asked, duals, strict=True):
            if isinstance(dual, _NoDual):
                found.missing[client] = dual.why
                if dual.lost:
                    strategy.lost.add(client)
                continue
            lam_i = dual.read().double()
            found.total += float(omega[client]) * lam_i
            found.scale += float(omega[client]) * _norm(lam_i)
            if strategy.shadow:
                own = books.shadow.get(client, torch.zeros_like(books.lam)).double()
                if _norm(lam_i - own) > TOLERANCE * _norm(own):
                    found.differ.append(client)
    return found


@dataclass(frozen=True)
class _NoDual:
    """Why a report brought none."""

    why: str
    lost: bool = False
    """The client's state is gone."""


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _dual(answer: Answer | str, like: Tensor, spool: Spool) -> Stored | _NoDual:
    """lam_i of a report, put away until all are there, for they are added in the order of the clients."""
    if isinstance(answer, str):
        return _NoDual(answer)
    if answer.status != Status.DONE:
        return _NoDual(printable(answer.reason), lost=answer.status == Status.LOST)
    if "lam" not in answer.arrays:
        return spool.add(torch.zeros_like(like))
    try:
        return spool.add(checked_vector(answer.arrays["lam"], like, "the dual"))
    except RefusedUploadError as refusal:
        return _NoDual(str(refusal))
