r"""How FedVRA chooses its stepsizes by itself: one number, adapted to what the server sees anyway.

In products the rule has the server's dual :math:`\lambda=\sum_i\omega_i\lambda_i` follow the mean gradient and step along it by
:math:`\kappa = 1/\gamma`. With :math:`T_i = \eta_i Q_i`, how far a client's gradient carries it in a round, ``auto`` takes

.. math::

    d_i = 1/p_i, \qquad a_i\gamma = \frac1{n T_i}, \qquad
    \kappa = 1/\gamma = n\,\frac{\sigma}{\bar p}\Big/\sum_i\omega_i\frac1{T_i}.

The first is unbiased (Remark 1). The second has a dual take its client's fresh gradient in n visits, whatever the work of the
client; n follows from p, see :func:`visits`. The third leaves one number, the multiplier
:math:`\sigma = \bar p\sum_i\omega_i a_i`: the server's step is heavy-ball momentum with a stepsize of :math:`\sigma` local
rounds and a memory of :math:`n/\bar p` rounds. For clients that agree, a direction whose curvature local work exhausts
contracts by :math:`1-\sigma` per round, so :math:`\sigma > 2` diverges there, while flat directions gain from a large
:math:`\sigma`. Which it is shows in the uploads: see ``fedvra.policies.pace_rules``; what is proven is in
``fedvra.theory.multiplier``.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from fedvra.core.adaptive import Seen
from fedvra.core.cohort import Cohort, Floats
from fedvra.core.errors import require
from fedvra.core.objects import Value
from fedvra.policies.auto import Auto
from fedvra.policies.pace_rules import REASONS, RULES, Signals


@dataclass(frozen=True)
class Pace(Value):
    """The multiplier sigma, and what it is judged by. A value: :meth:`after` gives the next one."""

    sigma: float
    move: float = math.nan
    """Running mean of |sum of uploads / T|^2; NaN before the first."""
    least_move: float = math.inf
    """The lowest root of it so far."""
    loss: float = math.nan
    """The training loss of the last round that told one; NaN before the first."""
    least_loss: float = math.inf
    most_loss: float = -math.inf
    """Its range so far."""
    rule: float = 0.0
    """Which of ``REASONS`` led to sigma. A number, as all that a checkpoint keeps."""

    @classmethod
    def first(cls, auto: Auto, p: float) -> Pace:
        """Before the first round.

        >>> Pace.first(Auto(), 0.1).sigma, round(Pace.first(Auto(), 0.02).sigma, 3)
        (1.0, 0.12)
        """
        return cls(min(auto.first, strongest(auto, p)))

    @classmethod
    def of(cls, auto: Auto, cohort: Cohort) -> Pace:
        """As remembered from the last round, or the first."""
        if not cohort.memory:
            return cls.first(auto, mean_p(cohort))
        names = cls.__dataclass_fields__
        require(
            cohort.memory.keys() == names.keys(),
            f"auto goes by {', '.join(names)}, and what it remembers is {', '.join(cohort.memory)}: another version wrote "
            "the checkpoint. Resume with that version, or start over.",
        )
        return cls(**cohort.memory)

    @property
    def reason(self) -> str:
        return REASONS[int(self.rule)]

    def numbers(self) -> dict[str, float]:
        return asdict(self)

    def after(self, auto: Auto, p: float, T: float, seen: Seen) -> Pace:
        """The pace for the next round: the first of ``RULES`` that applies changes log sigma."""
        fresh = seen.move / T**2
        now = self._with(auto, p, fresh, seen)
        signals = Signals(auto, self, now, fresh)
        number, rule = next((k, rule) for k, rule in enumerate(RULES) if rule.when(signals))
        sigma = self.sigma * math.exp(rule.change(signals))
        return replace(
            now,
            sigma=max(p, min(strongest(auto, p), sigma)),
            least_move=min(self.least_move, signals.uploads),
            rule=1.0 + number,
        )

    def _with(self, auto: Auto, p: float, fresh: float, seen: Seen) -> Pace:
        """The running means with a round in them."""
        weight = min(1.0, auto.move_weight * p)
        loss = seen.loss if math.isfinite(seen.loss) else self.loss
        return replace(
            self,
            move=fresh if math.isnan(self.move) else self.move + weight * (fresh - self.move),
            loss=loss,
            least_loss=min(self.least_loss, loss),
            most_loss=max(self.most_loss, loss),
        )


def strongest(auto: Auto, p: float) -> float:
    """The largest sigma for participation p.

    >>> [round(strongest(Auto(), p), 3) for p in (1.0, 0.1, 0.05, 0.001)]
    [1.9, 1.9, 0.75, 0.001]
    """
    return min(auto.strongest, max(p, auto.stale * p * p))


def visits(auto: Auto, p: float) -> float:
    """n: in how many visits a dual takes its client's gradient.

    In one, unless lam would then be a mean over few rounds: where many take part a dual that took its client's fresh gradient
    at once would have the client undo its own last round.

    >>> [visits(Auto(), p) for p in (0.01, 0.1, 0.2, 1.0)]
    [1.0, 1.0, 2.0, 10.0]
    """
    return max(1.0, auto.memory * p)


def mean_p(cohort: Cohort) -> float:
    """The mean of p_i over all clients, estimated from those who were drawn."""
    return float(len(cohort) / (1 / cohort.p).sum())


def carry(cohort: Cohort) -> Floats:
    """T_i = eta_i*Q~_i: how far a constant unit gradient carries each client."""
    return cohort.eta * cohort.amount


def mean_carry(cohort: Cohort) -> float:
    """The mean of T_i over all clients, estimated from those who were drawn."""
    return float((carry(cohort) / cohort.p).sum() / (1 / cohort.p).sum())


def mean_rate(cohort: Cohort) -> float:
    r""":math:`\sum_i\omega_i/T_i` over all clients, estimated from those who were drawn: the rate at which lam is renewed."""
    share = (cohort.omega if cohort.omega.any() else 1.0) / cohort.p
    return float((share / carry(cohort)).sum() / share.sum())
