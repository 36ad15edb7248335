"""FedDyn: dynamic regularisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.algorithms.base import Algorithm, Everyone, ones, positive, register
from fedvra.core.coefficients import Coefficients
from fedvra.core.cohort import Cohort
from fedvra.core.deploy import MEAN, Deploy


@register
@dataclass(frozen=True)
class FedDyn(Algorithm):
    r"""Each client's objective is tilted so that its minimiser agrees with the global one; FedVRA with a = 1, d = 1/p.

    .. math::

        x         &\leftarrow x - \eta\,(g_i(x) - \lambda_i + \alpha (x - x_0)) \\
        \lambda_i &\leftarrow \lambda_i + \alpha (x_0 - x_i) \\
        x_0       &\leftarrow x_0 + \sum_{i\in A}\frac{\omega_i}{p_i}(x_i - x_0) - \frac{1}{\alpha}\lambda

    In the original's variables lam_i is the stored gradient :math:`\nabla L_i(\theta_i)` and lam is :math:`h`.

    Args:
        alpha: the regularisation, gamma of the common rule.

    >>> FedDyn(alpha=0.1)
    FedDyn(alpha=0.1)

    Departures: the original minimises each client's objective exactly; here with as many steps as the user asks for, as the
    paper's experiments do.
    """

    alpha: float = 0.1

    name: ClassVar[str] = "feddyn"
    label: ClassVar[str] = "FedDyn"
    suits: ClassVar[str] = (
        "Clients that can keep a dual, data that differ, and one hyper-parameter, which has to be tuned."
    )
    reference: ClassVar[str] = "Acar et al., Federated learning based on dynamic regularization, ICLR 2021"
    converges_exactly: ClassVar[bool] = True
    deploy: ClassVar[Deploy] = MEAN

    def __post_init__(self) -> None:
        positive(self.alpha, "alpha")

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        gamma = self.alpha * ones(cohort)
        return Coefficients(gamma=gamma, alpha=gamma, w=1.0 / cohort.p, kappa=1.0 / self.alpha)
