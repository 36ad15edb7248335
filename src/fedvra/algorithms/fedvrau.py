"""FedVRA-U: the paper's algorithm for two blocks of variables and constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvra.algorithms.base import register
from fedvra.algorithms.fedvra import PrimalDual
from fedvra.core.cohort import Setting
from fedvra.policies import inverse_p


@register
@dataclass(frozen=True)
class FedVRAU(PrimalDual):
    r"""FedVRA for :math:`\min_{x\in X,\,y_i\in Y_i}\sum_i\omega_i f_i(x, y_i)` (Algorithm 3).

    .. math::

        y_i       &\leftarrow P_{Y_i}(y_i - \eta^y\,\nabla_y f_i(x_0, y_i))
                     && Q^y_i \text{ times, at } x_0 \\
        x         &\leftarrow x - \eta\,(\nabla_x f_i(x, y_i) - \lambda_i + \gamma_i(x - x_0))
                     && Q_i \text{ times from } x = x_0 \\
        \lambda_i &\leftarrow \lambda_i + a_i\gamma_i(x_0 - x_i) \\
        x_0       &\leftarrow P_X\Big(x_0 + \beta\sum_{i\in A}\omega_i d_i\gamma_i(x_i - x_0) - \beta\lambda\Big)

    Steps two to four are FedVRA's. The y-steps and P_X belong to the *problem* (:class:`~fedvra.problems.two_block.TwoBlock`,
    ``SemiSupervised``, ``Clustering``), so every algorithm of this library solves two-block problems in its adapted version, as
    in the paper: FedAvg on such a problem takes the same y-steps and the same projection. What is FedVRA-U's own is its
    coefficients, which are those of FedVRA under the defaults of the paper's second kind of experiment. On a problem with
    one block and no constraints it *is* FedVRA.

    Args:
        gamma: the penalty; gamma*eta must not exceed 1.
        a: dual stepsize. The paper: gamma = 0.5, a = 5 (MNIST), gamma = 0.1, a = 7 (CIFAR-10).
        d: aggregation stepsize. The paper has 15 where 1/p = 10; the tasks ``mnist-ssl`` and ``cifar10-ssl`` set that.

    >>> FedVRAU(gamma=0.5, a=5, d=15)
    FedVRAU(gamma=0.5, a=5, d=15)

    Departures: as FedVRA; d = 1/p by default, because 15 suits one number of clients only.
    """

    gamma: Setting = 0.5
    a: Setting = 5
    d: Setting = inverse_p

    name: ClassVar[str] = "fedvra-u"
    label: ClassVar[str] = "FedVRA-U"
    suits: ClassVar[str] = (
        "Problems with a private block of variables per client or with constraints: semi-supervised learning, "
        "clustering, personalisation."
    )
    reference: ClassVar[str] = (
        "Wang et al., Beyond ADMM: a unified client-variance-reduced adaptive federated learning framework, AAAI 2023"
    )
    converges_exactly: ClassVar[bool] = True
