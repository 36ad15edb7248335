r"""The update equations: the only place where they are written.

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

Departures from the paper. (1) Products alpha = a*gamma, w = beta*gamma*d and kappa = beta stand for its (a, d, gamma, beta):
taken literally gamma = 0 gives beta = infinity and an upload that is zero. (2) sigma = 1 adds SCAFFOLD and VRL-SGD, whose
server step the paper's limit gamma -> 0 does not reach. (3) The upload is D_i, not gamma_i * D_i: the server knows gamma_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedvra.cohort import Floats


@dataclass(frozen=True)
class Totals:
    """Scalars over the clients whose replies are counted; what the scale s may depend on."""

    omega: float
    """sum_A omega_i"""
    omega_q: float
    """sum_A omega_i * Q_i"""


def unscaled(totals: Totals) -> float:
    """s = 1: the weights w_i say it all."""
    return 1.0


def over_cohort(totals: Totals) -> float:
    """s = 1 / sum_A omega_i: a weighted mean over those who answered."""
    return 1.0 / totals.omega


def effective_steps(totals: Totals) -> float:
    """s = (sum_A omega_i Q_i) / (sum_A omega_i)^2: FedNova's tau_eff over the cohort's weight, for w_i = 1/Q_i."""
    return totals.omega_q / totals.omega**2


@dataclass(frozen=True)
class Coefficients:
    """What an algorithm says of a round: its row of the table, arrays over the cohort [M]."""

    gamma: Floats
    """Strength of the proximal pull towards x0."""
    alpha: Floats
    """a*gamma: how far the dual moves per unit of x0 - x_i. Zero everywhere: there are no duals at all."""
    w: Floats
    """beta*gamma*d: the weight of D_i in the server's step, besides omega_i."""
    sigma: float = 0.0
    """0: the client corrects by its dual alone (ADMM family). 1: by its dual minus the server's (SCAFFOLD, VRL-SGD)."""
    kappa: float = 0.0
    """beta: how far lam moves x0."""
    scale: Callable[[Totals], float] = unscaled
    """s, once it is known whose replies count."""
    communicates: bool = True
    """False: the clients go on by themselves this round and the server hears nothing (FedPD)."""


class Affine(NamedTuple):
    """Step 11 as x <- rho*x - eta*g + c, with c constant over a client's local steps (None where it is zero)."""

    rho: float | Tensor
    c: Tensor | None


def correction(lam_i: Tensor, lam: Tensor, sigma: float) -> Tensor:
    """h_i = lam_i - sigma*lam: what the client's gradient is corrected by."""
    return lam_i - sigma * lam if sigma else lam_i


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


def affine(
    h: Tensor | None, x0: Tensor, eta: float | Tensor, gamma: float | Tensor, decay: float = 0.0, pulled: bool = True
) -> Affine:
    """Step 11 solved for x: rho = 1 - eta*(gamma + decay), c = eta*(h + gamma*x0). The same step, one pass instead of four.

    ``h`` None means no correction, ``pulled`` False that gamma is zero: with both there is nothing to add.
    """
    rho = 1 - eta * (gamma + decay)
    if h is None:
        return Affine(rho, eta * gamma * x0 if pulled else None)
    return Affine(rho, eta * (h + gamma * x0) if pulled else eta * h)


def advance_(x: Tensor, g: Tensor, eta: float | Tensor, step: Affine) -> None:
    """Step 11 in place, in its affine form: x <- rho*x - eta*g + c."""
    x.mul_(step.rho)
    if isinstance(eta, Tensor):
        x.addcmul_(eta, g, value=-1)
    else:
        x.add_(g, alpha=-eta)
    if step.c is not None:
        x.add_(step.c)


def private_step(y: Tensor, g: Tensor, eta_y: float, project: Callable[[Tensor], Tensor]) -> Tensor:
    """Step 11 of Algorithm 3: P_Y(y - eta_y*g), on the block that stays with its client."""
    return project(y - eta_y * g)


def dual_step(h: Tensor, delta: Tensor, alpha: float | Tensor, out: Tensor | None = None) -> Tensor:
    """Step 14: lam_i = h_i + alpha*(x0 - x_i) with delta = x_i - x0."""
    if isinstance(alpha, Tensor):
        return torch.addcmul(h, delta, alpha, value=-1, out=out)
    return torch.sub(h, delta, alpha=alpha, out=out)


def weighted_sums(dual_weight_M: Tensor, model_weight_M: Tensor, delta_MP: Tensor, move_MP: Tensor) -> Tensor:
    """[sum_i omega_i*alpha_i*D_i; sum_i omega_i*w_i*(x_i - x0)] of a block, as [2, P].

    ``move`` is x_i - x0 and is ``delta`` itself unless clients have anchors of their own; then one pass does both. Partial
    sums over parts of a cohort add up to those of the whole: they may be formed anywhere.
    """
    if move_MP is delta_MP:
        return torch.stack((dual_weight_M, model_weight_M)) @ delta_MP
    return torch.stack((dual_weight_M @ delta_MP, model_weight_M @ move_MP))


def server_dual(lam: Tensor, dual_sum: Tensor, sigma: float, omega: float) -> Tensor:
    """Step 19: lam + sum_A omega_i*(-alpha_i*D_i - sigma*lam)."""
    return (1 - sigma * omega) * lam - dual_sum if sigma else lam - dual_sum


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


def anchor_step(x_i: Tensor, lam_i: Tensor, kappa: float) -> Tensor:
    """FedPD without communication: step 20 taken by one client for itself, x0_i = x_i - kappa*lam_i."""
    return x_i - kappa * lam_i
