"""FedPD: primal-dual with every client, and rounds without communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.algorithms.base import Algorithm, Everyone, ones, positive, register
from fedvra.core.coefficients import Coefficients
from fedvra.core.cohort import Cohort
from fedvra.core.errors import require
from fedvra.core.streams import Purpose, stream


@register
@dataclass(frozen=True)
class FedPD(Algorithm):
    r"""Every client keeps its own anchor x0_i; communication averages the anchors, and may be skipped at random.

    .. math::

        x         &\leftarrow x - \eta\,(g_i(x) - \lambda_i + \gamma (x - x_{0,i})) \\
        \lambda_i &\leftarrow \lambda_i + \gamma (x_{0,i} - x_i) \\
        x_{0,i}^+ &= x_i - \lambda_i / \gamma, \qquad
        x_{0,i} \leftarrow \begin{cases} \sum_j \omega_j x_{0,j}^+ & \text{with probability } 1 - skip \\
                                         x_{0,i}^+ & \text{otherwise} \end{cases}

    Args:
        gamma: the penalty (1/eta in the original), one number for all.
        skip: probability of a round without communication; a common coin drawn from the run's seed. With skip > 0 the
            minimiser is no fixed point unless the clients agree: a skipped round moves each anchor from x* by -lam_i/gamma.

    >>> FedPD(gamma=0.1)
    FedPD(gamma=0.1, skip=0.0)

    Departures: local steps start from the anchor, as everywhere in this library, not from the client's last x_i; their
    number is the user's, where the original asks for a given accuracy. Signs follow the paper: lam_i here is -lambda_i there.
    """

    gamma: float = 0.1
    skip: float = 0.0

    name: ClassVar[str] = "fedpd"
    label: ClassVar[str] = "FedPD"
    suits: ClassVar[str] = "Every client in every round, and communication that is worth skipping now and then."
    reference: ClassVar[str] = (
        "Zhang et al., FedPD: a federated learning framework with adaptivity to non-IID data, IEEE TSP 2021"
    )
    everyone_takes_part: ClassVar[bool] = True
    own_anchor: ClassVar[bool] = True
    converges_exactly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.gamma, "gamma")
        require(0 <= self.skip < 1, f"skip must be in [0, 1), got {self.skip}.")

    def coefficients(self, cohort: Cohort, everyone: Everyone) -> Coefficients:
        gamma = self.gamma * ones(cohort)
        coin = stream(cohort.seed, Purpose.SKIP, round=cohort.round).random()
        return Coefficients(
            gamma=gamma,
            alpha=gamma,
            w=ones(cohort),
            kappa=1.0 / self.gamma,
            communicates=bool(coin >= self.skip),
        )
