"""FedAvg: local SGD and a mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedvra.algorithms.base import Algorithm, Everyone, ones, register, zeros
from fedvra.core.coefficients import Coefficients, over_cohort, unscaled
from fedvra.core.cohort import Cohort
from fedvra.core.errors import require

Averaging = Literal["cohort", "unbiased"]


def averaging_coefficients(averaging: Averaging, cohort: Cohort) -> Coefficients:
    """The row shared by FedAvg and FedProx: no duals, and one of the two means over the cohort."""
    w, scale = (ones(cohort), over_cohort) if averaging == "cohort" else (1.0 / cohort.p, unscaled)
    return Coefficients(gamma=zeros(cohort), alpha=zeros(cohort), w=w, scale=scale)


@register
@dataclass(frozen=True)
class FedAvg(Algorithm):
    r"""Local SGD, then the mean of the models of those who took part.

    .. math:: x_0 \leftarrow x_0 + \frac{1}{\sum_{j\in A}\omega_j} \sum_{i\in A}\omega_i (x_i - x_0)

    Args:
        averaging: ``"cohort"`` (above) divides by the weight of those who answered; ``"unbiased"`` divides each by its
            probability, :math:`x_0 + \sum_{i\in A} \frac{\omega_i}{p_i}(x_i - x_0)`, as the paper has it. They are equal
            when weights are equal and the cohort's size is fixed. ``"cohort"`` is the default: it is how FedAvg is run
            almost everywhere, and as x0 stays a convex combination of the clients' models a small or light cohort cannot
            overshoot, which 1/p does whenever the cohort's weight is random.

    >>> FedAvg()
    FedAvg(averaging='cohort')

    Departures from the paper: it writes only the 1/p form.
    """

    averaging: Averaging = "cohort"

    name: ClassVar[str] = "fedavg"
    label: ClassVar[str] = "FedAvg"
    suits: ClassVar[str] = (
        "The baseline, and the choice where clients can keep no state between rounds and their data are similar."
    )
    reference: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017"
    )

    def __post_init__(self) -> None:
        check_averaging(self.averaging)

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        return averaging_coefficients(self.averaging, cohort)


def check_averaging(averaging: str) -> None:
    require(averaging in ("cohort", "unbiased"), f"averaging must be 'cohort' or 'unbiased', got {averaging!r}.")
