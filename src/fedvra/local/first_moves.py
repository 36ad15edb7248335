"""Everybody takes one step from x0: no D_i is ever written down, only its share of the sums and of the new dual.

With x = x0 the pull of step 11 is zero, so D_i = -eta*(g_i + decay*x0 - h_i), and step 14 becomes
lam_i = h_i - alpha*D_i = (1 - alpha*eta)*h_i + alpha*eta*decay*x0 + alpha*eta*g_i. The gradients g_i are kept as factors
(``replay.first``), which is all that a weighted sum of them, or adding one to a dual, needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedvra.core.block import BlockTerms, Private
from fedvra.core.cohort import Floats, Ints
from fedvra.core.step import Moves, Shares
from fedvra.local.programs import Programs
from fedvra.local.replay import FirstStep, check_first


def takes_first_steps(terms: BlockTerms, private: Private) -> bool:
    """Whether every client takes a single step from x0, with one stepsize and nothing but its dual to keep.

    Not where moves are compressed: each has to be written down for that.
    """
    block = terms.orders.block
    return (
        terms.orders.compress is None
        and not terms.own_anchors
        and private == (None, None)
        and bool(block.steps.max() == 1 and np.all(block.eta == block.eta[0]))
    )


def solve_first(programs: Programs, terms: BlockTerms, schedules: list[list[Ints]]) -> FirstMoves | None:
    """The clients' steps; None where their gradients cannot be had as factors."""
    block, x0, feed = terms.orders.block, terms.sent.x0, programs.feed
    first = programs.first(len(schedules[0][0]), len(schedules))
    if first is None:
        return None
    programs.anchor.copy_(x0)
    programs.fill_block(first, schedules, 0, [feed.augmentation(block, int(c)) for c in block.clients])
    if block.check is not None and block.check.any():
        check_first(programs.subject, first, programs.anchor, x0, np.flatnonzero(block.check).tolist())
    first.run()
    return FirstMoves(terms, first)


class FirstMoves(Moves):
    """Moves of one step each, as factors of the gradients."""

    def __init__(self, terms: BlockTerms, first: FirstStep) -> None:
        super().__init__(terms, first.loss.to(torch.float64, copy=True))
        self.first, self.eta, self.decay = first, float(terms.orders.block.eta[0]), terms.orders.decay

    def move(self, k: int) -> Tensor:
        move = torch.zeros_like(self.terms.sent.x0)
        self.first.add_row_(k, move, -self.eta)
        add_first_moves_(move, self.terms.sent.x0, self.terms.correction(k), 1.0, self.eta, self.decay)
        return move

    def finish(
        self, shares: Shares | None, alphas: Floats | None, place: Callable[[int], Tensor | None]
    ) -> Iterator[Tensor]:
        x0, eta, decay, pulls = self.terms.sent.x0, self.eta, self.decay, {}
        weighted = [] if shares is None else shares.weighted()
        for total, weights in weighted:
            self.first.add_sum_(total, torch.as_tensor(weights).to(total), -eta)
            add_first_moves_(total, x0, None, float(weights.sum()), eta, decay)
        for k in range(len(self.terms)):
            h = self.terms.correction(k)
            if alphas is not None:
                alpha = float(alphas[k])
                if alpha not in pulls:
                    pulls[alpha] = dual_pull(x0, alpha, eta, decay)
                lam_i = first_dual(pulls[alpha], h, alpha, eta, out=place(k))
                self.first.add_row_(k, lam_i, alpha * eta)
                yield lam_i
            for total, weights in weighted:  # after the dual, which is still in the cache while its gradient is added
                add_first_moves_(total, x0, h, float(weights[k]), eta, 0.0)


def add_first_moves_(total_P: Tensor, x0: Tensor, h: Tensor | None, weight: float, eta: float, decay: float) -> None:
    """total += weight*D for a step from x0, less its gradient: D = -eta*(decay*x0 - h). Without h: for many clients at once."""
    if decay:
        total_P.add_(x0, alpha=-weight * eta * decay)
    if h is not None:
        total_P.add_(h, alpha=weight * eta)


def dual_pull(x0: Tensor, alpha: float, eta: float, decay: float) -> Tensor:
    """alpha*eta*decay*x0: the part of :func:`first_dual` that all clients with the same alpha and eta have in common."""
    return torch.mul(x0, alpha * eta * decay)


def first_dual(pull: Tensor, h: Tensor | None, alpha: float, eta: float, out: Tensor | None = None) -> Tensor:
    """Steps 11 and 14 for a client that takes one step from x0, less its gradient: alpha*eta*g_i is still to be added.

    lam_i = h_i - alpha*D_i = (1 - alpha*eta)*h_i + alpha*eta*decay*x0 + alpha*eta*g_i, with ``pull`` the second term.
    """
    if h is None:
        return pull.clone() if out is None else out.copy_(pull)
    return torch.add(pull, h, alpha=1 - alpha * eta, out=out)
