"""FedADMM: the federated ADMM of the paper's Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.algorithms.base import Algorithm, Everyone, beta, positive, register, relative_penalty
from fedvra.core.coefficients import Coefficients
from fedvra.core.cohort import Cohort, Setting, resolve


@register
@dataclass(frozen=True)
class FedADMM(Algorithm):
    r"""Consensus ADMM with client sampling and inexact local steps; FedVRA with a = d = 1.

    .. math::

        x         &\leftarrow x - \eta\,(g_i(x) - \lambda_i + \gamma_i (x - x_0)) \\
        \lambda_i &\leftarrow \lambda_i + \gamma_i (x_0 - x_i) \\
        x_0       &\leftarrow x_0 + \beta\sum_{i\in A}\omega_i\gamma_i(x_i - x_0) - \beta\lambda,
        \qquad \beta = 1/\textstyle\sum_{i=1}^N\omega_i\gamma_i

    Args:
        gamma: the penalty, a number or one per client.

    >>> FedADMM(gamma=0.1)
    FedADMM(gamma=0.1)
    """

    gamma: Setting = 0.1

    name: ClassVar[str] = "fedadmm"
    label: ClassVar[str] = "FedADMM"
    suits: ClassVar[str] = (
        "A primal-dual baseline with one hyper-parameter, and the starting point of FedVRA, which converges "
        "faster with its two further stepsizes."
    )
    reference: ClassVar[str] = (
        "Algorithm 2 of the FedVRA paper; Wang et al., FedADMM: a federated primal-dual algorithm, 2022"
    )
    converges_exactly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.gamma, "gamma")

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        gamma = resolve(self.gamma, cohort, "gamma")
        return Coefficients(
            gamma=gamma,
            alpha=gamma,
            w=relative_penalty(self.gamma, cohort, everyone),
            kappa=beta(self.gamma, everyone),
        )
