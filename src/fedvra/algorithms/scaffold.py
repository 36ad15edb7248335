"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.algorithms.base import Algorithm, Everyone, Protocol, ones, positive, register, zeros
from fedvra.core.coefficients import Coefficients
from fedvra.core.cohort import Cohort, Setting, resolve


@register
@dataclass(frozen=True)
class Scaffold(Algorithm):
    r"""Correct each gradient by the difference of the client's and the server's control variate (lam_i is c_i, lam is c).

    .. math::

        x         &\leftarrow x - \eta\,(g_i(x) - \lambda_i + \lambda) \\
        \lambda_i &\leftarrow \lambda_i - \lambda + \frac{1}{\eta Q_i}(x_0 - x_i) \qquad\text{(option II)} \\
        x_0       &\leftarrow x_0 + \eta_g \sum_{i\in A} \frac{\omega_i}{p_i}(x_i - x_0)

    Q_i is the client's true number of steps in this round, not a common K; with momentum their effective number
    (``fedvra.core.optimisers``).

    Args:
        global_lr: the server's stepsize eta_g.

    >>> Scaffold()
    Scaffold(global_lr=1)

    Departures: one vector goes up instead of two, since the server can work out the change of c_i from x_i - x0.
    """

    global_lr: Setting = 1

    name: ClassVar[str] = "scaffold"
    label: ClassVar[str] = "SCAFFOLD"
    suits: ClassVar[str] = (
        "Clients that can keep a control variate, where data differ. There is little to tune; twice the "
        "traffic as published."
    )
    reference: ClassVar[str] = (
        "Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020"
    )
    original: ClassVar[Protocol] = Protocol(up=2, down=2)
    converges_exactly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.global_lr, "global_lr")

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        return Coefficients(
            sigma=1.0,
            gamma=zeros(cohort),
            alpha=1.0 / (cohort.eta * cohort.amount),
            w=resolve(self.global_lr, cohort, "global_lr") / cohort.p,
            rate=ones(cohort),
        )
