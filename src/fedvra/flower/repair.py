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

from dataclasses import dataclass
from logging import INFO, WARNING
from typing import TYPE_CHECKING

import torch
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedvra.flower.ledger import new_ticket
from fedvra.flower.protocol import Answer, Errand, Status
from fedvra.flower.uploads import RefusedUploadError, checked_vector

if TYPE_CHECKING:
    from fedvra.flower.strategy import Strategy


@dataclass(frozen=True)
class Audit:
    """What the clients hold against what the server counted."""

    gap: float
    """\\|lam - sum_i omega_i*lam_i\\| over the clients that reported."""
    norm: float
    """\\|lam\\|."""
    missing: dict[int, str]
    """Clients whose dual could not be had, and why; the gap means little unless this is empty."""

    @property
    def relative(self) -> float:
        """gap / norm; 0 where both are 0."""
        return self.gap / self.norm if self.norm else self.gap


def audit(strategy: Strategy, grid: Grid) -> Audit:
    """Measure lam - sum_i omega_i*lam_i. Clients never counted have lam_i = 0 and are not asked."""
    total, missing = _reported(strategy, grid, leave_out=set())
    lam = strategy.books.lam.double()
    return Audit(float(torch.linalg.vector_norm(lam - total)), float(torch.linalg.vector_norm(lam)), missing)


def repair(strategy: Strategy, grid: Grid) -> None:
    """Find a dual for every client of ``strategy.lost``, to go along with the next message to it."""
    books, lost = strategy.books, strategy.lost
    if strategy.shadow:
        books.restores.update({client: books.shadow.get(client, torch.zeros_like(books.x0)) for client in lost})
    else:
        total, missing = _reported(strategy, grid, leave_out=set(lost))
        if waiting := missing.keys() - lost:
            log(WARNING, "clients %s await repair until %s report", sorted(lost), sorted(waiting))
            return
        weight = float(sum(strategy.plan.omega[client] for client in lost))
        remainder = books.lam.double() - total
        share = remainder / weight if weight else torch.zeros_like(remainder)
        books.restores.update({client: share.to(books.lam.dtype, copy=True) for client in lost})
    books.tickets.update({client: new_ticket() for client in lost})
    log(INFO, "the duals of clients %s will be restored", sorted(lost))
    lost.clear()
    strategy.save()  # before the state is sent: a server that dies here must know the new tickets


def _reported(strategy: Strategy, grid: Grid, leave_out: set[int]) -> tuple[Tensor, dict[int, str]]:
    """sum_i omega_i*lam_i over the clients that were ever counted and are not left out, and who did not report, and why.

    A client that turns out to have lost its state is added to ``strategy.lost``.
    """
    books, omega = strategy.books, strategy.plan.omega
    asked = [client for client, ticket in sorted(books.tickets.items()) if ticket and client not in leave_out]
    total, missing = torch.zeros_like(books.lam, dtype=torch.float64), {}
    answers = strategy.ask(grid, [strategy.order(Errand.REPORT, client) for client in asked])
    for client, answer in zip(asked, answers, strict=True):
        lam_i = _dual(answer, books.lam)
        if isinstance(lam_i, str):
            missing[client] = lam_i
            if isinstance(answer, Answer) and answer.status == Status.LOST:
                strategy.lost.add(client)
        elif lam_i is not None:
            total += float(omega[client]) * lam_i.double()
    return total, missing


def _dual(answer: Answer | str, like: Tensor) -> Tensor | str | None:
    """lam_i of a report (None: it is zero), or why there is none."""
    if isinstance(answer, str):
        return answer
    if answer.status != Status.DONE:
        return answer.reason
    if "lam" not in answer.arrays:
        return None
    try:
        return checked_vector(answer.arrays["lam"], like, "the dual")
    except RefusedUploadError as refusal:
        return str(refusal)
