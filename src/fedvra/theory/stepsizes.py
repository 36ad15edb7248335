"""Which rows of the table are FedVRA, the algorithm that the theorems are about, and with which stepsizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedvra.core.cohort import Floats
from fedvra.core.rule import Coefficients, unscaled


class Stepsizes(NamedTuple):
    """The paper's settings, [M], and its beta."""

    gamma: Floats
    a: Floats
    d: Floats
    beta: float


def read_stepsizes(row: Coefficients) -> Stepsizes | str:
    """gamma, a, d and beta of a row that is an instance of FedVRA; otherwise why it is none.

    FedADMM (a = d = 1), FedDyn (a = 1, d = 1/p) and FedPD with communication in every round are instances.

    >>> read_stepsizes(Coefficients(np.array([0.5]), np.array([5.0]), np.array([3.0]), kappa=2.0))
    Stepsizes(gamma=array([0.5]), a=array([10.]), d=array([3.]), beta=2.0)
    >>> read_stepsizes(Coefficients(np.zeros(1), np.zeros(1), np.ones(1)))
    'it has no duals (alpha = 0)'
    """
    if not row.alpha.all():
        return "it has no duals (alpha = 0)"
    if row.sigma:
        return "it corrects by the difference of the duals (sigma = 1)"
    if not row.gamma.all():
        return "it has no penalty (gamma = 0)"
    if not row.kappa or row.scale is not unscaled:
        return "its server step is another one (kappa = 0, or a mean over the cohort)"
    if not row.communicates:
        return "it skips communication"
    if np.all(row.gamma == row.gamma[0]) and not np.isclose(row.kappa * row.gamma[0], 1.0):
        return "its kappa is not 1/sum(omega*gamma)"
    return Stepsizes(row.gamma, row.alpha / row.gamma, row.w / (row.kappa * row.gamma), row.kappa)
