"""FedVRA: the paper's algorithm, and the row of coefficients it shares with FedVRA-U."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedvra.algorithms.base import Algorithm, Everyone, beta, non_negative, ones, register, relative_penalty
from fedvra.core.adaptive import Adaptive, Seen
from fedvra.core.coefficients import Coefficients, discounted_steps
from fedvra.core.cohort import Cohort, Floats, Setting, resolve
from fedvra.core.deploy import MEAN, Deploy
from fedvra.core.errors import require
from fedvra.policies import Auto, Pace, Remark1, auto, inverse_p
from fedvra.policies.pace import carry, mean_carry, mean_p, mean_rate, visits


@dataclass(frozen=True)
class PrimalDual(Algorithm, Adaptive, ABC):
    """What FedVRA and FedVRA-U have in common: alpha = a*gamma, w = beta*gamma*d, kappa = beta, with ``auto`` filled in.

    Where gamma is auto it is one number for all, 1/kappa; it changes from round to round, which leaves lam = sum omega_i*lam_i
    and its meaning, the mean gradient, as they are. Where gamma is given, auto can only choose a, and keeps a*p below sigma.
    """

    gamma: Setting = auto
    a: Setting = auto
    d: Setting = auto

    def __post_init__(self) -> None:
        for name, setting in (("gamma", self.gamma), ("a", self.a), ("d", self.d)):
            non_negative(setting, name)

    @property
    def adapts(self) -> bool:
        return isinstance(self.gamma, Auto) or isinstance(self.a, Auto)

    @property
    def rule(self) -> Auto:
        """The constants that count."""
        return next(setting for setting in (self.gamma, self.a, auto) if isinstance(setting, Auto))

    def chosen(self, cohort: Cohort) -> dict[str, float | str]:
        pace = Pace.of(self.rule, cohort)
        return {"multiplier": pace.sigma, "multiplier_reason": pace.reason}

    def remember(self, cohort: Cohort, seen: Seen) -> dict[str, float]:
        return Pace.of(self.rule, cohort).after(self.rule, mean_p(cohort), mean_carry(cohort), seen).numbers()

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        if isinstance(self.gamma, Auto):
            pace = Pace.of(self.rule, cohort)
            p = mean_p(cohort)
            kappa = visits(self.rule, p) * pace.sigma / (p * mean_rate(cohort))
            penalty = np.minimum(1 / kappa, 0.5 / cohort.eta)  # the bound: for eta_i far above the mean
            relative = ones(cohort)
        else:
            kappa = beta(self.gamma, everyone)
            penalty = resolve(self.gamma, cohort, "gamma")
            relative = relative_penalty(self.gamma, cohort, everyone)
        d = resolve(inverse_p if isinstance(self.d, Auto) else self.d, cohort, "d")
        alpha, free = self._alpha(cohort, penalty, d), isinstance(self.gamma, Auto) and isinstance(self.a, Auto)
        rate = ones(cohort) / visits(self.rule, mean_p(cohort)) if free else None
        return Coefficients(gamma=penalty, alpha=alpha, w=relative * d, kappa=kappa, rate=rate)

    def _alpha(self, cohort: Cohort, gamma: Floats, d: Floats) -> Floats:
        """a*gamma, one per client."""
        if isinstance(self.a, Remark1):
            require(
                cohort.effective is None, "remark1 is a bound for plain SGD: give a number for a, or leave it at auto."
            )
            amounts = cohort.eta * discounted_steps(gamma, cohort.eta, cohort.steps.astype(np.float64))
            return np.where(gamma > 0, np.maximum(0.0, 1 / amounts - d * gamma), 0.0)
        if not isinstance(self.a, Auto):
            return resolve(self.a, cohort, "a") * gamma
        fresh = 1 / carry(cohort)
        if isinstance(self.gamma, Auto):
            return fresh / visits(self.rule, mean_p(cohort))
        return np.minimum(fresh, gamma * Pace.of(self.rule, cohort).sigma / mean_p(cohort))


@register
@dataclass(frozen=True)
class FedVRA(PrimalDual):
    r"""ADMM with two more stepsizes: a for the duals (how strongly variance is reduced), d for the aggregation (its bias).

    .. math::

        x         &\leftarrow x - \eta\,(g_i(x) - \lambda_i + \gamma_i (x - x_0)) \\
        \lambda_i &\leftarrow \lambda_i + a_i\gamma_i (x_0 - x_i) \\
        x_0       &\leftarrow x_0 + \beta\sum_{i\in A}\omega_i d_i\gamma_i(x_i - x_0) - \beta\lambda,
        \qquad \beta = 1/\textstyle\sum_{i=1}^N\omega_i\gamma_i

    All three are chosen by the algorithm unless they are given (``auto``, see docs/adaptive.md).

    Args:
        gamma: the penalty; 0 leaves local SGD. gamma*eta must not exceed 1.
        a: dual stepsize; 0 switches the duals off. Each setting may be a number, a table [N] or [R, N], a policy
            (``fedvra.policies``), or a function of the :class:`~fedvra.core.cohort.Cohort`.
        d: aggregation stepsize; auto is 1/p_i^r (Remark 1), which is N/m for uniform sampling: the paper's 10.

    (a=0, gamma=0, d=1/p) is FedAvg, (a=0) FedProx, (a=d=1) FedADMM, (a=1, d=1/p) FedDyn.

    >>> FedVRA(), FedVRA(gamma=0.1, a=10, d=10)
    (FedVRA(gamma=auto, a=auto, d=auto), FedVRA(gamma=0.1, a=10, d=10))

    Departures: see ``fedvra.core.rule``; a round in which nobody answers leaves x0 as it is. The paper sets (gamma, a, d) by
    search: (0.1, 10, 10) on MNIST, (0.1, 7, 10) on CIFAR-10.
    """

    name: ClassVar[str] = "fedvra"
    label: ClassVar[str] = "FedVRA"
    suits: ClassVar[str] = (
        "The first one to try: data that differ, partial participation, unequal local work. Its stepsizes "
        "need no tuning; clients keep one vector of the model's size between rounds."
    )
    reference: ClassVar[str] = (
        "Wang et al., Beyond ADMM: a unified client-variance-reduced adaptive federated learning framework, AAAI 2023"
    )
    converges_exactly: ClassVar[bool] = True
    deploy: ClassVar[Deploy] = MEAN
