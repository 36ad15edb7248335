"""FedVRA: the paper's algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.algorithms.base import Algorithm, Everyone, beta, non_negative, register, relative_penalty
from fedvra.cohort import Cohort, Setting, resolve
from fedvra.policies import inverse_p
from fedvra.rule import Coefficients


@register
@dataclass(frozen=True)
class FedVRA(Algorithm):
    r"""ADMM with two more stepsizes: a for the duals (how strongly variance is reduced), d for the aggregation (its bias).

    .. math::

        x         &\leftarrow x - \eta\,(g_i(x) - \lambda_i + \gamma_i (x - x_0)) \\
        \lambda_i &\leftarrow \lambda_i + a_i\gamma_i (x_0 - x_i) \\
        x_0       &\leftarrow x_0 + \beta\sum_{i\in A}\omega_i d_i\gamma_i(x_i - x_0) - \beta\lambda,
        \qquad \beta = 1/\textstyle\sum_{i=1}^N\omega_i\gamma_i

    Args:
        gamma: the penalty; 0 leaves local SGD. gamma*eta must not exceed 1.
        a: dual stepsize; 0 switches the duals off. Each setting may be a number, a table [N] or [R, N], or a function of the
            :class:`~fedvra.cohort.Cohort`.
        d: aggregation stepsize; by default 1/p_i^r (Remark 1), which is N/m for uniform sampling: the paper's 10.

    (a=0, gamma=0, d=1/p) is FedAvg, (a=0) FedProx, (a=d=1) FedADMM, (a=1, d=1/p) FedDyn.

    >>> FedVRA(gamma=0.1, a=10, d=10)
    FedVRA(gamma=0.1, a=10, d=10)

    Departures: see ``fedvra.rule``; a round in which nobody answers leaves x0 as it is.
    """

    gamma: Setting = 0.1
    a: Setting = 10
    d: Setting = inverse_p

    name: ClassVar[str] = "fedvra"
    label: ClassVar[str] = "FedVRA"
    reference: ClassVar[str] = "Beyond ADMM: a unified client-variance-reduced adaptive federated learning framework"
    converges_exactly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_stepsizes(self.gamma, self.a, self.d)

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        return primal_dual_coefficients(self.gamma, self.a, self.d, cohort, everyone)


def primal_dual_coefficients(
    gamma: Setting, a: Setting, d: Setting, cohort: Cohort, everyone: Everyone
) -> Coefficients:
    """The row shared by FedVRA and FedVRA-U: alpha = a*gamma, w = beta*gamma*d, kappa = beta."""
    penalty = resolve(gamma, cohort, "gamma")
    return Coefficients(
        gamma=penalty,
        alpha=resolve(a, cohort, "a") * penalty,
        w=relative_penalty(gamma, cohort, everyone) * resolve(d, cohort, "d"),
        kappa=beta(gamma, everyone),
    )


def check_stepsizes(gamma: Setting, a: Setting, d: Setting) -> None:
    for name, setting in (("gamma", gamma), ("a", a), ("d", d)):
        non_negative(setting, name)
