"""Theorem 1: FedVRA with local SGD, any sampling, any numbers of local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedvra.core.cohort import Floats
from fedvra.core.errors import require
from fedvra.core.rule import discounted_steps
from fedvra.theory.conditions import Condition, Setting, descent_factor, local_spread, read_settings, weights

BY_ROUND = ("p", "a", "d", "steps")


@dataclass(frozen=True)
class Theorem1(Setting):
    r"""A run of FedVRA under the paper's Theorem 1.

    Args:
        L: Lipschitz constants of the gradients of f_i.
        p: probability that the client takes part.
        gamma, eta, a, d, steps: as in FedVRA; ``steps`` is Q_i.
        omega: weights; equal if left out.
        total: N, where those given are a sample of the clients; for the printed D_1, which is a sum over all.

    Each is a number or one per client; p, a, d and steps may also be tables [R, N], one row per round.

    With :math:`C_1 = (a+d)\gamma\eta\tilde Q`, :math:`C_2 = a\gamma\eta\tilde Q` and
    :math:`\Xi_i = \|\nabla f_i(x_0) - \lambda_i\|^2` the theorem says of the mean over seeds that, under its conditions,

    .. math::

        P^r = f(x_0^r) + \sum_i\omega_i\frac{4\beta\Xi_i^r}{p_i C_2^i}, \qquad
        \frac{1}{R}\sum_{r<R}\|\nabla f(x_0^r)\|^2 \le \frac{2 D_1 (P^0 - \underline f)}{\beta R} + \frac{5 D_2\sigma^2}{4S}

    >>> setting = Theorem1.feasible(L=[1.0, 2.0], p=0.5, steps=5, a=2, d=2)
    >>> setting.holds, setting.gamma, setting.eta * setting.gamma
    (True, array([112., 224.]), array([0.025, 0.025]))

    Departures from the paper, each found by going through its proof; where there are two forms both are given, and
    :attr:`holds` asks for both:

    1. Condition (17) on gamma is enough for the descent of P^r where all gamma_i are equal. The proof compares 1/beta with the
       least gamma_i and L_i with its own; with differing gamma_i it needs the one inequality "gamma, as proved" instead.
    2. Condition (18), eta*Q~*L <= 1/sqrt(6), is enough for Lemma 2 where gamma*eta*Q~ <= 1/2 (always where a + d >= 2);
       the proof takes the weight of a step in the last iterate for that in an earlier one. See
       :func:`~fedvra.theory.conditions.local_spread`.
    3. P^r and P^{r+1} have different weights where p_i^r*C_2^{i,r} changes from round to round (unequal local work, say),
       and the sum over r then does not telescope. It does with the least p_i*C_2^i over the rounds in the potential,
       which is what is taken here; D_2 grows accordingly.
    4. D_1 sums over the clients terms of which the greatest is enough: N times less; :meth:`rate_constant` is that one.
    """

    L: Any
    p: Any
    gamma: Any
    eta: Any
    a: Any
    d: Any
    steps: Any
    omega: Any = None
    total: int | None = None

    def __post_init__(self) -> None:
        names = ("L", "p", "gamma", "eta", "a", "d", "steps")
        for name, value in read_settings({name: getattr(self, name) for name in names}, BY_ROUND).items():
            object.__setattr__(self, name, value)
        require(bool(np.all(self.p <= 1)), f"probabilities must be in (0, 1], got {self.p.max()}.")
        object.__setattr__(self, "omega", weights(self.omega, len(self.L)))
        object.__setattr__(self, "total", self.total or len(self.L))

    @classmethod
    def feasible(
        cls,
        L: Any,
        p: Any,
        steps: Any,
        a: Any = 9.0,
        d: Any = 1.0,
        omega: Any = None,
        total: int | None = None,
        common: bool = False,
    ) -> Theorem1:
        r"""gamma and eta that satisfy every condition for given a and d, as in the paper's appendix B.

        .. math:: \gamma\eta Q = \frac{1}{2(a+d)}, \qquad \gamma = \frac{28(a+d)L}{p\,a}

        Where rounds differ the first is for the greatest (a+d)*Q of a client, and the second, in its general form
        gamma >= 14L/(p*a*gamma*eta*Q), for the least p*a*Q. Where the gamma_i differ so much that the descent needs it, all
        are raised by one factor.

        Args:
            common: one gamma and one eta for all clients, as a config file wants.
        """
        made = read_settings({"L": L, "p": p, "steps": steps, "a": a, "d": d}, BY_ROUND)
        L, p, steps, a, d = (made[name] for name in ("L", "p", "steps", "a", "d"))
        require(bool(np.all(a + d >= 0.5)), "appendix B needs a + d >= 1/2: the pull gamma*eta would exceed 1.")
        pull = (1 / (2 * (a + d) * steps)).min(0)
        pull = np.full_like(pull, pull.min()) if common else pull
        gamma = (14 * L / (p * a * pull * steps)).max(0)
        gamma = np.full_like(gamma, gamma.max()) if common else gamma
        draft = cls(L, p, gamma, pull / gamma, a, d, steps, omega, total)
        factor = descent_factor(*draft._descent())
        return cls(L, p, factor * gamma, pull / (factor * gamma), a, d, steps, omega, total)

    # -- the paper's quantities ----------------------------------------------------------------------------------------

    @property
    def pace(self) -> Floats:
        """The least p*C_2 of each client over the rounds, [N]: how fast its dual is sure to follow its gradient."""
        return np.asarray((self.p * self.c2).min(0))

    def conditions(self) -> list[Condition]:
        L, gamma, eta, one = self.L, self.gamma, self.eta, np.ones_like(self.L)
        discounted = discounted_steps(gamma, eta, self.steps).max(0)
        spread = local_spread(gamma, eta, self.steps).max(0)
        penalty = L / 2 + 13 * L / (2 * self.pace)
        descent = np.array([sum(self._descent())])
        return [
            Condition("gamma, as printed", "L/2 + 13L/(2 p C2) <= gamma", penalty, gamma),
            Condition(
                "gamma, as proved", "sum omega (beta L + 8 (beta L)^2 (1 + 4/pC2)/pC2) <= 1", descent, np.ones(1)
            ),
            Condition("eta, smoothness, as printed", "sqrt(6) eta Q~ L <= 1", np.sqrt(6) * eta * discounted * L, one),
            Condition("eta, smoothness, as proved", "sqrt(6) eta K L <= 1", np.sqrt(6) * eta * spread * L, one),
            Condition("eta, pull", "gamma eta <= 1", gamma * eta, one),
            Condition("eta, a and d", "C1 = (a+d) gamma eta Q~ <= 1", self.c1.max(0), one),
        ]

    @staticmethod
    def dual_weight(beta: float, pace: Floats) -> Floats:
        """4 beta/(p C2): what Xi_i counts in the potential."""
        return np.asarray(4 * beta / pace)

    def potential(self, cost: float, xi: Floats) -> float:
        """P^r = f(x0) + sum_i omega_i * 4 beta Xi_i/(p C2), from f(x0) and Xi_i = ||grad f_i(x0) - lam_i||^2 [N]."""
        return cost + float(self.omega @ (self.dual_weight(self.beta, self.pace) * xi))

    # -- what follows ----------------------------------------------------------------------------------------------------

    @property
    def d1(self) -> float:
        """D_1 as printed: max_r sum_i 9/(p (C1 + C2))."""
        return float((9 / (self.p * (self.c1 + self.c2))).mean(1).max()) * float(self.total or 0)

    def rate_constant(self) -> float:
        """The D for which ||grad f||^2 <= 2D(P^r - P^{r+1})/beta in the mean: the proof's (c = 1/8), a greatest for a sum."""
        p, C1, C2 = self.p, self.c1, self.c2
        return float(max(9 / 4, (9 * (2 - p * C1) / (2 * p * (C1 + C2))).max()))

    def d2(self, d1: float | None = None) -> float:
        """D_2, for the printed D_1 or another."""
        return float(self.omega @ self._noise_gain(self.d1 if d1 is None else d1))

    def bound(self, gap: float, rounds: int, noise: Any = 0.0, d1: float | None = None) -> float:
        """What the mean of ||grad f(x0^r)||^2 over r < ``rounds`` is below.

        Args:
            gap: P^0 - inf f.
            noise: sigma^2/S, the variance of a step's gradient: a number, or one per client.
            d1: D_1; by default :meth:`rate_constant`, the least that the proof gives. ``setting.d1`` is the printed one.
        """
        require(self.holds, "the conditions of Theorem 1 do not hold, so it bounds nothing.")
        d1 = self.rate_constant() if d1 is None else d1
        variance = float(self.omega @ (self._noise_gain(d1) * np.asarray(noise, dtype=np.float64)))
        return 2 * d1 * gap / (self.beta * rounds) + 5 / 4 * variance

    def corollary(self, gap: float, rounds: int, noise: float = 0.0) -> float | None:
        """Corollary 1 as printed, for clients with equal p, Q, a, d, gamma and eta; None where they differ.

        Its D_1 is at most 18/(p (C1 + C2)) as printed, and half of that by its own proof.
        """
        settings = (self.p, self.steps, self.a, self.d, self.gamma, self.eta)
        if any(not np.allclose(values, values.flat[0], rtol=1e-9) for values in settings):
            return None
        p, C1, C2 = (float(values.flat[0]) for values in (self.p, self.c1, self.c2))
        both = p * (C1 + C2)
        return 36 * gap / (self.beta * both * rounds) + (180 / both + 45 + 45 / 4 * p * C1) * noise

    def _descent(self) -> tuple[float, float]:
        """The parts, linear and quadratic in 1/gamma, of what moving x0 costs the potential, over what it gains."""
        bent = self.beta * self.L
        return float(self.omega @ bent), float(self.omega @ (8 * bent**2 * (1 + 4 / self.pace) / self.pace))

    def _noise_gain(self, d1: float) -> Floats:
        """By how much a client's noise counts, [N]: D_2 is their mean."""
        p, C1, C2 = self.p, self.c1, self.c2
        duals = p * C2 / self.pace * (1 + p * C2 / 4) + p * C1 / 4
        return np.asarray((8 * d1 * duals + 9 * p * C1).mean(0))
