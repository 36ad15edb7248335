r"""For which constant multiplier and visits FedVRA converges on quadratics: auto's (sigma, n), in mean square.

Let clients share their curvature in a direction, h, and differ in their minima as they like. Measured from the solution, with
:math:`e_i = (\lambda_i - \lambda_i^*)/h`, a round with m of N clients drawn uniformly is linear:

.. math::

    e_i &\leftarrow e_i + c\,(x_0 - e_i), \quad i\in A, \qquad c = \varphi/(nT) \\
    x_0 &\leftarrow x_0 - y\,(x_0 - u) - k\,\bar e^{\,+}, \qquad u = \tfrac1m\sum_{i\in A}e_i

with :math:`\varphi = (1-(1-\eta(h+\gamma))^Q)/(h+\gamma)`, :math:`y = h\varphi`, :math:`k = \kappa h` and auto's
:math:`\kappa = n\sigma T/p`, :math:`\gamma = 1/\kappa`. By symmetry four second moments, those of :math:`x_0`, of
:math:`\bar e = \frac1N\sum e_i`, between the two, and :math:`\frac1N\sum e_i^2`, map linearly to themselves:
:func:`second_moments`. So x0 converges in mean square, and almost surely, exactly where that matrix has a spectral radius below
one; it depends on :math:`\tau = hT`, how stiff the direction is for a round of local work.

>>> strongest(visits=2, cohort=1, clients=100) > 1.5, strongest(visits=1, cohort=1, clients=100) < 1.5
(True, True)
"""

from __future__ import annotations

import math

import numpy as np

from fedvra.core.cohort import Floats

STIFFNESS = np.geomspace(1e-3, 1e3, 121)
"""Values of tau that stand for all: from directions that local work hardly touches to those it exhausts."""


def second_moments(
    sigma: float, visits: float, cohort: int, clients: int, tau: float, steps: float = math.inf
) -> Floats:
    """The matrix that maps E[x0^2], E[x0*e], E[e^2], E[mean of e_i^2] to those after a round.

    Args:
        tau: eta*Q*h, with eta*(h + gamma) at most 1.
        steps: Q; infinite where local work follows the gradient's flow.
    """
    p = cohort / clients
    pull = tau + p / (visits * sigma)  # (h + gamma)*T
    left = math.exp(-pull) if math.isinf(steps) else (1 - pull / steps) ** steps
    y = tau * (1 - left) / pull
    c = (1 - left) / pull / visits
    s, k, w = p * c, visits * sigma * tau / p, y + sigma * y  # k*s = sigma*y
    v = (1 - p) / cohort * clients / (clients - 1) if clients > 1 else 0.0  # variance of u, per variance of the e_i
    a, b = 1 - w, w - k  # x0+ = a*x0 + b*e + w*xi,  e+ = s*x0 + (1 - s)*e - s*xi,  u = e + xi
    return np.array(
        [
            [a * a, 2 * a * b, b * b - w * w * v, w * w * v],
            [a * s, a * (1 - s) + b * s, b * (1 - s) + w * s * v, -w * s * v],
            [s * s, 2 * s * (1 - s), (1 - s) ** 2 - s * s * v, s * s * v],
            [p * c * c, 2 * p * (1 - c) * c, 0.0, 1 - p + p * (1 - c) ** 2],
        ]
    )


def radius(sigma: float, visits: float, cohort: int, clients: int, taus: Floats = STIFFNESS) -> float:
    """The largest spectral radius over directions; below 1 where every one of them converges in mean square."""
    return max(
        float(np.abs(np.linalg.eigvals(second_moments(sigma, visits, cohort, clients, float(tau)))).max())
        for tau in taus
    )


def strongest(visits: float, cohort: int, clients: int, most: float = 4.0) -> float:
    """The largest sigma, to three digits, below which directions of every stiffness converge."""
    low, high = 1e-3, most
    while high - low > 5e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if radius(middle, visits, cohort, clients) < 1 else (low, middle)
    return low
