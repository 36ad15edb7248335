"""What both theorems are made of: inequalities per client, and the quantities of local SGD under a proximal pull."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedvra.core.cohort import Floats
from fedvra.core.errors import UsageError, require
from fedvra.core.objects import Value
from fedvra.core.rule import discounted_steps


@dataclass(frozen=True)
class Condition(Value):
    """An inequality left <= right that must hold for every client; both sides as arrays over the clients [N].

    One that is about all clients together has arrays of one number.
    """

    name: str
    formula: str
    left: Floats
    right: Floats

    @property
    def holds(self) -> bool:
        return bool(np.all(self.left <= self.right))

    @property
    def share(self) -> float:
        """The share of clients for which it holds."""
        return float(np.mean(self.left <= self.right))

    def __str__(self) -> str:
        worst = int(np.argmax(self.left - self.right))
        sides = f"{self.left[worst]:.3g} <= {self.right[worst]:.3g}"
        return f"{'holds' if self.holds else 'FAILS'}  {self.name}: {self.formula}  (worst client: {sides})"


def local_spread(gamma: Floats, eta: Floats, steps: Floats) -> Floats:
    r"""K: what Lemma 2's proof needs in place of Q~ in the condition on eta; 0 for a single step, infinite at gamma*eta = 1.

    With :math:`\rho = 1 - \gamma\eta` and :math:`S_t = 1 + \rho + \dots + \rho^{t-1}`, a client is at
    :math:`x^t - x_0 = -\eta\sum_{k<t}\rho^{t-1-k}(g^k - \lambda_i)` after t steps, so by Jensen's inequality

    .. math:: \sum_{t<Q}\rho^{Q-1-t}\|x^t - x_0\|^2 \le \eta^2 K^2 \sum_{k<Q}\rho^{Q-1-k}\|g^k - \lambda_i\|^2,
        \qquad K^2 = \frac{1}{\rho}\sum_{t=1}^{Q-1} S_t

    The paper writes :math:`\rho^{Q-1-k}` for :math:`\rho^{t-1-k}` and arrives at Q~ for K. As
    :math:`K^2 \le Q(Q-1)/2\rho` and :math:`\tilde Q^2 \ge Q^2\rho^{Q-1}`, K is at most Q~ wherever
    :math:`\gamma\eta\tilde Q \le 1/2`; so always where a + d >= 2, since (a + d)*gamma*eta*Q~ <= 1.

    >>> local_spread(np.array([0.0, 0.5]), np.array([0.1, 1.0]), np.array([3.0, 1.0]))
    array([1.73205081, 0.        ])
    """
    pull = np.minimum(gamma * eta, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = np.where(
            steps * pull > 1e-4,
            ((steps - 1) - (1 - pull) * discounted_steps(pull, np.ones_like(pull), steps - 1)) / pull,
            steps * (steps - 1) / 2,
        )
        return np.where(steps <= 1, 0.0, np.sqrt(sums / (1 - pull)))


def read_settings(given: Mapping[str, Any], by_round: tuple[str, ...] = ()) -> dict[str, Floats]:
    """Numbers, tables [N] and, for those named in ``by_round``, [R, N], all positive, as arrays [N] and [R, N]."""
    arrays = {name: np.asarray(value, dtype=np.float64) for name, value in given.items()}
    try:
        shape = np.broadcast_shapes(*(value.shape for value in arrays.values()), (1, 1))
        shapes = {name: shape if name in by_round else shape[1:] for name in arrays}
        made = {name: np.broadcast_to(value, shapes[name]) for name, value in arrays.items()}
    except ValueError:
        found = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items())
        tables = f", and {', '.join(by_round)} also [R, N]" if by_round else ""
        raise UsageError(f"settings must be numbers or one per client{tables}; got {found}.") from None
    for name, value in made.items():
        require(bool(np.all(np.isfinite(value) & (value > 0))), f"{name} must be finite and > 0, got {value}.")
    return made


def weights(omega: Any, count: int) -> Floats:
    """omega_i, summing to 1; equal where None."""
    raw = np.broadcast_to(np.asarray(1.0 if omega is None else omega, dtype=np.float64), (count,))
    require(bool(np.all(np.isfinite(raw)) and np.all(raw >= 0) and raw.sum() > 0), "omega must be >= 0, not all zero.")
    return np.asarray(raw / raw.sum())


def descent_factor(linear: float, square: float) -> float:
    """The least s >= 1 with linear/s + square/s^2 <= 1: by how much to raise every gamma, at fixed gamma*eta.

    A little more where it is more than 1, so that rounding does not decide.

    >>> descent_factor(0.1, 0.2), round(descent_factor(1, 2), 6)
    (1.0, 2.0)
    """
    if linear + square <= 1:
        return 1.0
    return float(linear + np.sqrt(linear**2 + 4 * square)) / 2 * (1 + 1e-9)


class Setting(Value, ABC):
    """What the settings of both theorems have in common; arrays over the clients [N], or rounds and clients [R, N]."""

    gamma: Any
    eta: Any
    a: Any
    d: Any
    steps: Any
    omega: Any

    @abstractmethod
    def conditions(self) -> list[Condition]:
        """Of the theorem, as printed and, where that is something else, as its proof needs them."""

    @property
    def holds(self) -> bool:
        """Whether every condition does, printed and proved."""
        return all(condition.holds for condition in self.conditions())

    @property
    def beta(self) -> float:
        """1 / sum_i omega_i*gamma_i."""
        return 1 / float(self.omega @ self.gamma)

    @property
    def c1(self) -> Floats:
        """C_1 = (a + d)*gamma*eta*Q~."""
        return np.asarray((self.a + self.d) * self.pull)

    @property
    def c2(self) -> Floats:
        """C_2 = a*gamma*eta*Q~: the share of the fresh gradient in the new dual."""
        return np.asarray(self.a * self.pull)

    @property
    def pull(self) -> Floats:
        """gamma*eta*Q~ = 1 - (1 - gamma*eta)^Q."""
        return np.asarray(self.gamma * self.eta * discounted_steps(self.gamma, self.eta, self.steps))
