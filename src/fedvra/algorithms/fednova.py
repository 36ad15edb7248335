"""FedNova: normalised averaging for clients that do different amounts of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.algorithms.base import Algorithm, Everyone, register, zeros
from fedvra.core.coefficients import Coefficients, effective_steps
from fedvra.core.cohort import Cohort


@register
@dataclass(frozen=True)
class FedNova(Algorithm):
    r"""Average the clients' movements *per step*, then move as far as the cohort did on average.

    .. math::

        x_0 \leftarrow x_0 + Q_\mathrm{eff} \sum_{i\in A} \frac{\omega_i}{\sum_{j\in A}\omega_j} \frac{x_i - x_0}{\tilde Q_i},
        \qquad Q_\mathrm{eff} = \frac{\sum_{i\in A} \omega_i \tilde Q_i}{\sum_{i\in A}\omega_i}

    :math:`\tilde Q_i = \|a_i\|_1` is the original's normaliser: Q_i for plain SGD, more with momentum
    (``fedvra.core.optimisers``).

    >>> FedNova()
    FedNova()

    Departures: none for SGD; local optimisers without a normaliser (Adam) are refused.
    """

    name: ClassVar[str] = "fednova"
    label: ClassVar[str] = "FedNova"
    suits: ClassVar[str] = (
        "Stateless clients that take unequal numbers of local steps: FedAvg would lean towards those that take more."
    )
    reference: ClassVar[str] = (
        "Wang et al., Tackling the objective inconsistency problem in heterogeneous federated optimization, NeurIPS 2020"
    )

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        return Coefficients(gamma=zeros(cohort), alpha=zeros(cohort), w=1.0 / cohort.amount, scale=effective_steps)
