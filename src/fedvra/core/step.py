"""A round of the rule: what a block of clients does, and what the server makes of it.

:func:`client_round` and :func:`server_round` are the only two places where the equations of ``rule`` are put together. The
simulator's workers, a Flower node, its server and the diagnostics call them; they differ in where a client's rows are kept
(:class:`Rows`), in how the local steps are taken (``solve``), and in whether uploads are added up at once (:class:`Shares`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core import rule
from fedvra.core.adaptive import Memory, remember
from fedvra.core.block import Block, BlockTerms, Broadcast, Kept, Orders, Private
from fedvra.core.cohort import Cohort, Floats
from fedvra.core.deploy import X0, ClientsMean, Deploy, Deployed, RunningMean
from fedvra.core.moves import CompressedMoves as CompressedMoves
from fedvra.core.moves import CountedMoves as CountedMoves
from fedvra.core.moves import Moves as Moves
from fedvra.core.moves import Shares as Shares
from fedvra.core.moves import WholeMoves as WholeMoves
from fedvra.core.whole import check_range, to_whole

Solve = Callable[[BlockTerms, Private, Block], Moves]
"""Each client's Q_i steps 11 from its anchor (steps 9-13). What is private is updated in place."""


def client_round(
    solve: Solve, sent: Broadcast, orders: Orders, kept: Kept, private: Private, shares: Shares | None = None
) -> Moves:
    """Steps 9-15 for a block of clients: correction, local steps, new dual, and what is sent.

    With ``orders.compress`` or ``orders.counting`` C(D_i) takes the place of D_i. New rows are staged in ``kept``. With
    ``shares``, uploads are added to the sums at once; without, ``Moves.sent`` gives each.
    """
    with torch.no_grad():
        terms = BlockTerms(sent, orders, kept.duals, kept.anchors)
    with torch.enable_grad():
        moves = solve(terms, private, orders.block)
    with torch.no_grad():
        if orders.compress is not None:
            moves = CompressedMoves(moves, orders.compress, kept.residuals)
        elif orders.counting is not None:
            moves = CountedMoves(moves, orders.counting, kept.residuals)
        duals = kept.duals
        alpha = rule.true_alpha(orders.alpha, orders.rate, None if moves.done is None else moves.done.carried)
        new = moves.finish(shares, None if duals is None else alpha, _nowhere if duals is None else duals.place)
        for k, lam_i in enumerate(new):
            if kept.anchors is not None and not orders.communicates:
                kept.anchors.stage(k, rule.anchor_step(terms.anchors[k] + moves.move(k), lam_i, orders.kappa))
            assert duals is not None
            duals.stage(k, lam_i)
        for rows, block in ((kept.aux, private.aux), (kept.y, private.y)):
            if rows is not None and block is not None:
                for k, row in enumerate(block):
                    rows.stage(k, row)
        if shares is not None and shares.aux is not None and shares.aux_weight is not None and private.aux is not None:
            rule.add_weighted_(shares.aux, shares.aux_weight, private.aux)
    return moves


def _nowhere(k: int) -> None:
    return None


class Sums(NamedTuple):
    """What the server needs of the uploads that count."""

    model: Tensor
    """sum_A omega_i*w_i*D_i"""
    dual: Tensor
    """sum_A omega_i*alpha_i*D_i"""
    aux: Tensor | None
    """sum_A omega_i*(float buffers)"""
    loss: float
    """The mean training loss of those who count."""
    told: Tensor | None = None
    """The lam that the clients were sent, where that was rounded."""
    mean: Tensor | None = None
    """sum_A omega_i*D_i, where it had to be formed: see :func:`forms_mean`."""

    lam: Tensor | None = None
    """The new lam, where step 19 was taken in whole units (``rule.whole_dual_step``)."""

    def moves(self, row: rule.Coefficients) -> Tensor:
        """sum_A omega_i*D_i."""
        if self.mean is not None:
            return self.mean
        w, alpha = rule.common(row.w), rule.common(row.alpha)
        if w is not None:
            return self.model if w == 1 else self.model / w
        assert alpha is not None
        return self.dual / alpha


def forms_mean(deploy: Deploy, row: rule.Coefficients, own_anchors: bool = False) -> bool:
    """Whether sum_A omega_i*D_i needs a sum of its own: it is asked for, and a multiple of neither of the others.

    With anchors of the clients' own the sum of step 19 is one of x_i - anchor, and so no multiple of it.
    """
    multiple = rule.common(row.w) is not None or (rule.common(row.alpha) is not None and not own_anchors)
    return deploy.needs_mean and row.communicates and not multiple


class Server(NamedTuple):
    """What the server's step changes."""

    x0: Tensor
    lam: Tensor
    aux: Tensor | None = None
    memory: Memory = Memory()
    deployed: Deployed | None = None
    """The model that the run is for, where it is not x0."""


def whole_server_dual(whole: Tensor, told: Tensor, omega: Floats, sigma: float, grains: int, counted: Tensor) -> Tensor:
    """Step 19 in whole units: ``rule.whole_dual_step`` on sums, each client's part rounded as the client rounds it."""
    taken = None if not sigma else sum(to_whole(sigma * each * told.double()) for each in omega.tolist())
    assert not isinstance(taken, int)
    return check_range(rule.whole_dual_step(whole, taken, grains, counted))


def server_round(
    server: Server,
    cohort: Cohort,
    counted: NDArray[np.bool_],
    row: rule.Coefficients,
    sums: Sums,
    algorithm: object,
    project: Callable[[Tensor], Tensor],
    deploy: Deploy = X0,
) -> Server:
    """Steps 19 and 20, the mean of the float buffers, what an algorithm that adapts remembers, and the model to deploy.

    Args:
        counted: whose reply counts, by place in the cohort.
        algorithm: asked what it remembers.
        project: P_X.
        deploy: which model the run is for. In a round without communication it stays as it was.
    """
    keep = counted.astype(np.float64)
    amounts = cohort.steps if cohort.effective is None else cohort.effective
    totals = rule.Totals(float(keep @ cohort.omega), float(keep @ (cohort.omega * amounts)))
    lam = sums.lam
    if lam is None:
        lam = rule.server_dual(server.lam, sums.dual, row.sigma, totals.omega, sums.told)
    x0 = server.x0
    if row.communicates:
        x0 = rule.server_model(x0, lam, sums.model, row.scale(totals), row.kappa, project)
    memory = remember(algorithm, cohort, sums.model, sums.loss)
    aux = server.aux if server.aux is None or sums.aux is None else sums.aux / rule.divisor(totals.omega)
    deployed = None if deploy == X0 else server.deployed
    if row.communicates:
        match deploy:
            case ClientsMean() if not totals.omega:  # nobody who counted has a weight: there is no mean
                deployed = deployed or Deployed(x0, aux)
            case ClientsMean():
                deployed = Deployed(rule.clients_mean(server.x0, sums.moves(row), totals.omega, project), aux)
            case RunningMean(factor):
                deployed = averaged(deployed, x0, aux, factor, project)
    return Server(x0, lam, aux, memory, deployed)


def averaged(
    last: Deployed | None, x0: Tensor, aux: Tensor | None, factor: float, project: Callable[[Tensor], Tensor]
) -> Deployed:
    """The running mean with one x0 more. Weights sum to one from the first round on: the start is not part of it."""
    if last is None:
        return Deployed(x0, aux)
    weight = 1 + factor * last.weight
    mean_aux = aux if aux is None or last.aux is None else rule.running_mean(last.aux, aux, weight)
    return Deployed(project(rule.running_mean(last.x, x0, weight)), mean_aux, weight)
