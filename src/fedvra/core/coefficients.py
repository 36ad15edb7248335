"""What an algorithm says of a round: its coefficients of the rule. Nothing here imports torch, which is slow to load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedvra.core.cohort import Floats
from fedvra.core.errors import require
from fedvra.core.objects import Value


@dataclass(frozen=True)
class Totals:
    """Scalars over the clients whose replies are counted; what the scale s may depend on."""

    omega: float
    """sum_A omega_i"""
    omega_q: float
    """sum_A omega_i * Q~_i, the effective numbers of steps"""


def divisor(omega: float) -> float:
    """The weight of those who answered, where a mean over them is wanted: none without weight can be had."""
    require(
        omega > 0,
        "the clients of this round whose replies count have weights that sum to zero, and there is no mean over them: give "
        "every client a weight above 0, or have the sampler leave out those without.",
    )
    return omega


def common(values: Floats) -> float | None:
    """The number that all values are; None where they differ, or are zero.

    >>> common(np.array([2.0, 2.0])), common(np.array([1.0, 2.0])), common(np.zeros(2))
    (2.0, None, None)
    """
    return float(values[0]) if len(values) and values[0] and bool(np.all(values == values[0])) else None


def unscaled(totals: Totals) -> float:
    """s = 1: the weights w_i say it all."""
    return 1.0


def over_cohort(totals: Totals) -> float:
    """s = 1 / sum_A omega_i: a weighted mean over those who answered."""
    return 1.0 / divisor(totals.omega)


def effective_steps(totals: Totals) -> float:
    """s = (sum_A omega_i Q~_i) / (sum_A omega_i)^2: FedNova's tau_eff over the cohort's weight, for w_i = 1/Q~_i."""
    return totals.omega_q / divisor(totals.omega**2)


@dataclass(frozen=True)
class Coefficients(Value):
    """What an algorithm says of a round: its row of the table, arrays over the cohort [M].

    >>> import numpy as np
    >>> Coefficients(gamma=np.zeros(2), alpha=np.zeros(2), w=np.ones(2)).kappa  # FedAvg's row, for a cohort of two
    0.0
    """

    gamma: Floats
    """Multiplier of the proximal pull towards x0."""
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
    """False: clients continue locally this round and the server hears nothing (FedPD)."""
    rate: Floats | None = None
    """alpha_i*T_i, where alpha is inverse to T_i: a training loop of a client's own may do more or less than was asked."""


def discounted_steps(gamma: Floats, eta: Floats, steps: Floats) -> Floats:
    """Q~ = (1 - (1 - gamma*eta)^Q) / (gamma*eta): what Q steps amount to under the pull towards x0; Q itself where gamma = 0.

    >>> discounted_steps(np.array([0.0, 0.5]), np.array([0.1, 1.0]), np.array([3.0, 2.0]))
    array([3. , 1.5])
    """
    pull = gamma * eta
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(pull > 0, -np.expm1(steps * np.log1p(-np.minimum(pull, 1.0))) / pull, steps)


def reach_of_steps(gamma: Floats, eta: Floats, steps: Floats) -> Floats:
    """eta*|Q~|: how far Q steps carry a constant gradient of 1, also where the pull throws a client back beyond x0.

    Where gamma*eta = 2 every other step undoes the one before:

    >>> reach_of_steps(np.array([0.0, 2.0]), np.array([0.1, 1.0]), np.array([4.0, 4.0]))
    array([0.4, 0. ])
    """
    pull = gamma * eta
    with np.errstate(all="ignore"):
        thrown = np.abs(1 - (1 - pull) ** steps) / pull
    return eta * np.where(pull > 1, thrown, discounted_steps(gamma, eta, steps))


def true_alpha(alpha: Floats, rate: Floats | None, carried: Floats | None) -> Floats:
    """alpha = rate/T, at the T that clients say they came to; as it was where it does not depend on T, or they did as asked."""
    if rate is None or carried is None:
        return alpha
    require(
        bool(np.all(carried > 0)),
        "the algorithm divides by how far a constant gradient carries a client, and the loop's optimiser has no such number: "
        "step with torch.optim.SGD and one stepsize for all parameters, or use an algorithm that needs none, such as FedDyn.",
    )
    return rate / carried
