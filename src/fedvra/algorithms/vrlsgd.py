"""VRL-SGD: variance-reduced local SGD for full participation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.algorithms.base import Algorithm, Everyone, ones, register, zeros
from fedvra.core.coefficients import Coefficients
from fedvra.core.cohort import Cohort


@register
@dataclass(frozen=True)
class VRLSGD(Algorithm):
    r"""Every client, every round: SCAFFOLD's correction with the server at the plain mean.

    .. math::

        x         &\leftarrow x - \eta\,(g_i(x) - \lambda_i + \lambda) \\
        \lambda_i &\leftarrow \lambda_i - \lambda + \frac{1}{\eta Q_i}(x_0 - x_i) \\
        x_0       &\leftarrow \sum_i \omega_i x_i

    The published method steps along :math:`g_i - \Delta_i` with :math:`\Delta_i = \lambda_i - \lambda`, updated with the mean
    at the *end* of the round, :math:`\Delta_i \leftarrow \Delta_i + \frac{1}{\eta Q}(\hat x - x_i)`; with equal Q and full
    participation that is the same sequence.

    >>> VRLSGD()
    VRLSGD()
    """

    name: ClassVar[str] = "vrlsgd"
    label: ClassVar[str] = "VRL-SGD"
    suits: ClassVar[str] = (
        "A few reliable clients that all take part in every round, such as hospitals or data centres."
    )
    reference: ClassVar[str] = "Liang et al., Variance reduced local SGD with lower communication complexity, 2019"
    everyone_takes_part: ClassVar[bool] = True
    converges_exactly: ClassVar[bool] = True

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        alpha = 1.0 / (cohort.eta * cohort.amount)
        return Coefficients(sigma=1.0, gamma=zeros(cohort), alpha=alpha, w=ones(cohort), rate=ones(cohort))
