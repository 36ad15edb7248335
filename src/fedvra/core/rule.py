r"""The update equations: the only place where they are written. Longer than other files, for none may be elsewhere.

Algorithms 1 and 2 of the paper (steps 9-20) in product form, with one switch sigma, so that every row of the table in
``fedvra.algorithms`` is a choice of coefficients:

.. math::

    h_i       &= \lambda_i - \sigma\lambda \\
    x         &\leftarrow x - \eta\,(g_i(x) - h_i + \gamma (x - x_0))
                 && \text{step 11, } Q_i \text{ times from } x = x_0 \\
    \lambda_i &\leftarrow h_i + \alpha\,(x_0 - x_i), \quad \alpha = a\gamma && \text{step 14} \\
    D_i       &= x_i - x_0 && \text{step 15, the one vector sent} \\
    \lambda   &\leftarrow \lambda + \sum_{i\in A} \omega_i(-\alpha_i D_i - \sigma\lambda) && \text{step 19} \\
    x_0       &\leftarrow P_X\big(x_0 + s \sum_{i\in A} \omega_i w_i D_i - \kappa\lambda\big) && \text{step 20}

Nothing here loops over clients or sends anything; x may be one client's vector [P] or a block of clients [M, P], with
coefficients that are numbers or columns [M, 1].

With compressed uploads C(D_i) stands for D_i in steps 14, 19 and 20: the dual moves by what was sent.

Departures from the paper. (1) Products alpha = a*gamma, w = beta*gamma*d and kappa = beta stand for its (a, d, gamma, beta):
taken literally gamma = 0 gives beta = infinity and an upload that is zero. (2) sigma = 1 adds SCAFFOLD and VRL-SGD, whose
server step the paper's limit gamma -> 0 does not reach. (3) The upload is D_i, not gamma_i * D_i: the server knows gamma_i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedvra.core.coefficients import Coefficients as Coefficients
from fedvra.core.coefficients import Totals as Totals
from fedvra.core.coefficients import common as common
from fedvra.core.coefficients import discounted_steps as discounted_steps
from fedvra.core.coefficients import divisor as divisor
from fedvra.core.coefficients import effective_steps as effective_steps
from fedvra.core.coefficients import over_cohort as over_cohort
from fedvra.core.coefficients import true_alpha as true_alpha
from fedvra.core.coefficients import unscaled as unscaled
from fedvra.core.cohort import Floats
from fedvra.core.torch_private import foreach_add_


@dataclass(frozen=True)
class Terms:
    """What step 11 adds to a client's gradient: x <- x - eta*(g + decay*x - h + gamma*(x - anchor))."""

    anchor: Tensor
    """x0, or the client's own where it keeps one."""
    h: Tensor | None
    """The correction h_i; None where it is zero."""
    eta: float | Tensor
    gamma: float | Tensor
    decay: float = 0.0
    """Weight decay, part of f_i."""


class AffineStep(NamedTuple):
    """Step 11 as x <- rho*x - eta*g + c, with c constant over a client's local steps (None where it is zero)."""

    rho: float | Tensor
    c: Tensor | None


class Stepping(Protocol):
    """Step 11 by an optimiser with a memory: see ``fedvra.local.stepping``."""

    def take(self, x: Tensor, g: Tensor) -> None:
        """x <- x - eta_t*O(u), u = g + decay*x - h + gamma*(x - anchor), in place."""


class Corrected(NamedTuple):
    """What an optimiser is handed, u = g + pull*x + shift, with shift constant over a client's local steps."""

    pull: float | Tensor
    """gamma + decay"""
    shift: Tensor | None
    """-(h + gamma*anchor); None where it is zero."""


def correction(lam_i: Tensor | None, lam: Tensor, sigma: float) -> Tensor | None:
    """h_i = lam_i - sigma*lam: what the client's gradient is corrected by. None stands for zero, before and after."""
    if not sigma:
        return lam_i
    return -sigma * lam if lam_i is None else torch.sub(lam_i, lam, alpha=sigma)


def local_step(
    x: Tensor,
    g: Tensor,
    h: Tensor,
    x0: Tensor,
    eta: float | Tensor,
    gamma: float | Tensor,
    decay: float = 0.0,
) -> Tensor:
    """Step 11: x - eta*(g + decay*x - h + gamma*(x - x0)), as it stands in the paper (decay: the weight decay in f_i)."""
    return x - eta * (g + decay * x - h + gamma * (x - x0))


def affine(terms: Terms, out: Tensor | None = None) -> AffineStep:
    """Step 11 solved for x: rho = 1 - eta*(gamma + decay), c = eta*(h + gamma*anchor). One pass instead of four.

    ``out`` is where c is put, where there is one.
    """
    rho = 1 - terms.eta * (terms.gamma + terms.decay)
    still = isinstance(terms.gamma, float) and terms.gamma == 0
    if terms.h is None:
        return AffineStep(rho, None if still else torch.mul(terms.anchor, terms.eta * terms.gamma, out=out))
    if still:
        return AffineStep(rho, torch.mul(terms.h, terms.eta, out=out))
    if isinstance(terms.gamma, Tensor):
        return AffineStep(rho, terms.eta * (terms.h + terms.gamma * terms.anchor))
    return AffineStep(rho, torch.add(terms.h, terms.anchor, alpha=terms.gamma, out=out).mul_(terms.eta))


def corrected(terms: Terms, out: Tensor | None = None) -> Corrected:
    """The gradient of step 11 as g + pull*x + shift, for momentum and the like; ``out`` is where the shift is put."""
    shift = affine(replace(terms, eta=1.0), out).c
    return Corrected(terms.gamma + terms.decay, None if shift is None else shift.neg_())


def correct_(u: Tensor, x: Tensor, pull: float | Tensor) -> None:
    """u <- u + pull*x: the part of the correction that changes with x."""
    if isinstance(pull, Tensor):
        u.addcmul_(pull, x)
    elif pull:
        u.add_(x, alpha=pull)


def first_move_(delta: Tensor, terms: Terms) -> None:
    """Step 11 at x = anchor less its gradient, as a move: delta = eta*(h - decay*anchor). The pull is zero there."""
    torch.mul(terms.anchor, -terms.eta * terms.decay, out=delta)
    if terms.h is not None:
        delta.add_(terms.h, alpha=float(terms.eta))


def advance_(x: Tensor, g: Tensor, eta: float | Tensor, step: AffineStep | Stepping) -> None:
    """Step 11 in place, in its affine form: x <- rho*x - eta*g + c; or by an optimiser, which knows its stepsizes."""
    if not isinstance(step, AffineStep):
        step.take(x, g)
        return
    x.mul_(step.rho)
    move_(x, g, eta)
    if step.c is not None:
        x.add_(step.c)


def move_(x: Tensor, direction: Tensor, eta: float | Tensor) -> None:
    """x <- x - eta*direction, in place: the step of an optimiser that has settled on its direction."""
    if isinstance(eta, Tensor):
        x.addcmul_(eta, direction, value=-1)
    else:
        x.add_(direction, alpha=-eta)


def advance_parts_(
    x: Tensor, parts: Sequence[Tensor], gradients: Sequence[Tensor | None], eta: float, step: AffineStep
) -> None:
    """Step 11 in place where the gradient comes in pieces, one for each of the ``parts`` that x [P] consists of."""
    if step.rho != 1.0:
        x.mul_(step.rho)
    dense = [g for g in gradients if g is not None and g.layout == torch.strided]
    if len(dense) == len(parts):
        foreach_add_(list(parts), dense, alpha=-eta)
    else:
        for part, g in zip(parts, gradients, strict=True):
            if g is not None:
                part.add_(g, alpha=-eta)  # that of an embedding may be sparse: only the rows that occurred
    if step.c is not None:
        x.add_(step.c)


def clipped_sum(g_BP: Tensor, clip: float) -> Tensor:
    """sum_j g_j*min(1, C/|g_j|) over records. A gradient that is not finite counts as zero: no record moves the sum by more."""
    norms = torch.linalg.vector_norm(g_BP, dim=1, dtype=torch.float64)
    scales = torch.where(norms > clip, clip / norms, torch.ones_like(norms))
    known = torch.isfinite(norms)
    if not bool(known.all()):
        g_BP, scales = g_BP[known], scales[known]
    return scales.to(g_BP.dtype) @ g_BP


def noised_gradient(total: Tensor, z: Tensor, clip: float, noise: float, expected: float) -> Tensor:
    """(total + sigma*C*z)/B: the gradient of a private step from its clipped sum, with B the expected size of a batch."""
    return (total.add(z, alpha=noise * clip) if noise else total) / expected


def private_step(y: Tensor, g: Tensor, eta_y: float, project: Callable[[Tensor], Tensor]) -> Tensor:
    """Step 11 of Algorithm 3: P_Y(y - eta_y*g), on the block that stays with its client."""
    return project(y - eta_y * g)


def dual_step(h: Tensor | None, delta: Tensor, alpha: float | Tensor, out: Tensor | None = None) -> Tensor:
    """Step 14: lam_i = h_i + alpha*(x0 - x_i) with delta = x_i - x0."""
    if h is None:
        return torch.mul(delta, -alpha, out=out)
    if isinstance(alpha, Tensor):
        return torch.addcmul(h, delta, alpha, value=-1, out=out)
    return torch.sub(h, delta, alpha=alpha, out=out)


def residual_step(
    delta: Tensor, residual: Tensor | None, compress: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Error feedback for rows without duals: sends c = C(D_i + e_i) and keeps e_i <- D_i + e_i - c. None stands for zero."""
    owed = delta if residual is None else delta + residual
    sent = compress(owed)
    return sent, owed - sent


def add_weighted_(total_P: Tensor, weights_M: Floats, delta_MP: Tensor) -> None:
    """total += sum_i weight_i*D_i, the sums of steps 19 (weight omega*alpha) and 20 (weight omega*w).

    Partial sums over parts of a cohort add up to those of the whole: they may be formed anywhere.
    """
    if len(weights_M) == 1:
        total_P.add_(delta_MP[0], alpha=float(weights_M[0]))
    else:
        torch.addmv(
            total_P, delta_MP.T, torch.as_tensor(weights_M, dtype=total_P.dtype, device=total_P.device), out=total_P
        )


def server_dual(lam: Tensor, dual_sum: Tensor, sigma: float, omega: float, told: Tensor | None = None) -> Tensor:
    """Step 19: lam + sum_A omega_i*(-alpha_i*D_i - sigma*lam). ``told`` is the lam that was sent, where it was rounded."""
    if not sigma:
        return lam - dual_sum
    return (1 - sigma * omega) * lam - dual_sum if told is None else lam - sigma * omega * told - dual_sum


def reweighed_dual(lam: Tensor, lam_i: Tensor | None, weight: float, change: float) -> Tensor:
    r"""lam after the weight of one client has changed, so that it stays the weighted mean of the clients' duals.

    .. math:: \lambda \leftarrow \frac{R\lambda + \Delta_i\lambda_i}{R + \Delta_i}, \qquad R = \sum_j r_j,\ \omega_j = r_j / R

    Weights r_j are 1 each, or the numbers of samples n_j. That lam = sum_j omega_j*lam_j says that R*lam = sum_j r_j*lam_j, a
    sum over those who are there, of which every client's part is its own. So:

    * who joins brings lam_i = 0 and r_new: lam <- (1 - omega_new)*lam with omega_new = r_new/(R + r_new);
    * who leaves takes its part along, Delta = -r_i: lam <- (lam - omega_i*lam_i)/(1 - omega_i);
    * whose samples become n_j + dn_j: lam <- (n*lam + dn_j*lam_j)/(n + dn_j).

    At the minimiser of the new cost lam = sum_j omega_j*grad f_j = 0, and only with this lam is it where the run comes to rest.
    Departure from the paper: its clients are the same from the first round to the last.

    Args:
        lam_i: the client's dual as it was counted last; None stands for zero.
        weight: R, before the change.
        change: Delta_i.

    >>> reweighed_dual(torch.tensor([2.0]), torch.tensor([5.0]), weight=3, change=-1)  # duals 5, 1, 0: the first one leaves
    tensor([0.5000])
    """
    new = weight + change
    total = lam.double() * (weight / new)
    if lam_i is not None:
        total = total + lam_i.double() * (change / new)
    return total.to(lam.dtype)


def whole_dual_step(held: Tensor, taken: Tensor | None, grains: int, counted: Tensor) -> Tensor:
    """Steps 14 and 19 in whole units (``fedvra.core.whole``), with C(D_i) in place of D_i: L - T - G*q.

    For a client L = omega_i*lam_i, T = sigma*omega_i*lam, each to the nearest grain (None: sigma is 0), and G*q is
    omega_i*alpha_i*C(D_i), that many units of G grains. For the server all three are the sums over clients. The step is linear
    and nothing in it is rounded, so that lam = sum_i omega_i*lam_i stays true to the last bit.

    >>> whole_dual_step(torch.tensor([100]), torch.tensor([7]), 4, torch.tensor([-2])).tolist()
    [101]
    """
    moved = held - grains * counted
    return moved if taken is None else moved - taken


def server_model(
    x0: Tensor,
    lam: Tensor,
    model_sum: Tensor,
    s: float,
    kappa: float,
    project: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Step 20: P_X(x0 + s*sum_A omega_i*w_i*D_i - kappa*lam), with the lam of step 19. No ``project``: X is the whole space."""
    x = x0 + s * model_sum
    if kappa:
        x = x - kappa * lam
    return x if project is None else project(x)


def clients_mean(
    x0: Tensor, move_sum: Tensor, omega: float, project: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """The mean of the models of those who count, P_X(x0 + sum_A omega_i*D_i / sum_A omega_i): step 20 as FedAvg takes it."""
    return server_model(x0, x0, move_sum, 1.0 / divisor(omega), 0.0, project)


def running_mean(mean: Tensor, new: Tensor, weight: float) -> Tensor:
    """mean + (new - mean)/weight: a weighted mean with one more term, of weight 1 in ``weight`` for all."""
    return torch.lerp(mean, new, 1.0 / weight)


def anchor_step(x_i: Tensor, lam_i: Tensor, kappa: float) -> Tensor:
    """FedPD without communication: step 20 taken by one client for itself, x0_i = x_i - kappa*lam_i."""
    return x_i - kappa * lam_i
