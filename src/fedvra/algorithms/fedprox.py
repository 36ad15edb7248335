"""FedProx: FedAvg with a pull towards the broadcast model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedvra.algorithms.base import Algorithm, Everyone, non_negative, register
from fedvra.algorithms.fedavg import Averaging, averaging_coefficients, check_averaging
from fedvra.core.coefficients import Coefficients
from fedvra.core.cohort import Cohort, Setting, resolve


@register
@dataclass(frozen=True)
class FedProx(Algorithm):
    r"""Local SGD on f_i(x) + (mu/2)*||x - x0||^2, which keeps clients near the broadcast model; then the mean.

    .. math:: x \leftarrow x - \eta\,(g_i(x) + \mu (x - x_0))

    Args:
        mu: multiplier of the pull (0 gives FedAvg).
        averaging: as in :class:`~fedvra.algorithms.fedavg.FedAvg`.

    >>> FedProx(mu=0.1)
    FedProx(mu=0.1, averaging='cohort')
    """

    mu: Setting = 0.1
    averaging: Averaging = "cohort"

    name: ClassVar[str] = "fedprox"
    label: ClassVar[str] = "FedProx"
    suits: ClassVar[str] = (
        "Stateless clients whose data differ, where FedAvg's clients drift too far apart. It damps the drift "
        "and does not remove the bias."
    )
    reference: ClassVar[str] = "Li et al., Federated optimization in heterogeneous networks, MLSys 2020"

    def __post_init__(self) -> None:
        non_negative(self.mu, "mu")
        check_averaging(self.averaging)

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        return replace(averaging_coefficients(self.averaging, cohort), gamma=resolve(self.mu, cohort, "mu"))
