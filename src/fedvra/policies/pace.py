r"""How FedVRA chooses its stepsizes by itself: one number, adapted to what the server sees anyway.

In products the rule has the server's dual :math:`\lambda=\sum_i\omega_i\lambda_i` follow the mean gradient and step along it by
:math:`\kappa = 1/\gamma`. With :math:`T_i = \eta_i Q_i`, how far a client's gradient carries it in a round, ``auto`` takes

.. math::

    d_i = 1/p_i, \qquad a_i\gamma = \frac1{n T_i}, \qquad
    \kappa = 1/\gamma = n\,\frac{\sigma}{\bar p}\Big/\sum_i\omega_i\frac1{T_i}.

The first is unbiased (Remark 1). The second has a dual take its client's fresh gradient in n visits, whatever the work of the
client; n is mostly 1, see :attr:`Pace.visits`. The third leaves one number, the multiplier
:math:`\sigma = \bar p\sum_i\omega_i a_i`: the server's step is heavy-ball momentum with a stepsize of :math:`\sigma` local
rounds and a memory of :math:`n/\bar p` rounds. For clients that agree, a direction whose curvature local work exhausts
contracts by :math:`1-\sigma` per round, so :math:`\sigma > 2` diverges there, while flat directions gain from a large
:math:`\sigma`. Which it is shows in the uploads: see :meth:`Pace.after`.
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
    most: float
    """sigma never exceeds this."""
    cosine: float = 0.0
    """Running mean of the cosine between successive sums of uploads."""
    move: float = math.nan
    """Running mean of |sum of uploads / T|^2; NaN before the first."""
    least_move: float = math.inf
    """The lowest root of it so far."""
    least_dual: float = math.inf
    """The lowest |lam| so far, over the share of clients whose duals are in it."""
    heard: float = 0.0
    """That share, as expected from p."""
    loss: float = math.nan
    """Running mean of the training loss; NaN before the first."""
    least_loss: float = math.inf
    most_loss: float = -math.inf
    """The range of that mean so far."""
    dual: float = math.inf
    """The last |lam|, over the share heard."""

    rule: float = 0.0
    """Which of ``REASONS`` led to sigma. A number, as all that a checkpoint keeps."""

    @classmethod
    def first(cls, auto: Auto, p: float) -> Pace:
        """Before the first round.

        >>> Pace.first(Auto(), 0.1).sigma, round(Pace.first(Auto(), 0.02).sigma, 3)
        (2.0, 0.12)
        """
        most = max(p, min(auto.most, auto.stale * p * p))
        return cls(min(auto.first, most), most)

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

    def visits(self, auto: Auto) -> float:
        """n: in how many visits a dual takes its client's gradient. sigma*n is the server's step along lam in units of T/p.

        Where sigma must stay below ``kept`` of its bound, noise is mostly why: the step is kept and lam averages longer. A
        sigma far below means swings, which a longer memory would damp less: then n is 1 again.

        >>> [round(Pace(sigma, 3.0).visits(Auto()), 2) for sigma in (3.0, 2.25, 1.0, 0.4, 0.2)]
        [1.0, 1.0, 2.25, 1.2, 1.0]
        """
        share = self.sigma / self.most
        return max(1.0, min(auto.kept / share, auto.swings * share))

    def resting(self, auto: Auto) -> float:
        """The sigma at which :meth:`visits` is largest, the lowest that the noise alone leads to.

        Down to here n makes up for sigma; below, n falls with it, and the server's step along lam with the square of sigma.

        >>> round(Pace(3.0, 3.0).resting(Auto()), 3)
        0.866
        """
        return self.most * math.sqrt(auto.kept / auto.swings)

    def numbers(self) -> dict[str, float]:
        return asdict(self)

    def after(self, auto: Auto, p: float, T: float, seen: Seen) -> Pace:
        """The pace for the next round: the first of ``RULES`` that applies changes log sigma."""
        fresh = seen.move / T**2
        now = self._with(auto, p, fresh, seen)
        signals = Signals(auto, p, self, now, fresh, seen.back)
        number, rule = next((k, rule) for k, rule in enumerate(RULES) if rule.when(signals))
        sigma = self.sigma * math.exp(rule.change(signals))
        return replace(
            now,
            sigma=max(min(p, self.most), min(self.most, sigma)),
            least_move=min(self.least_move, signals.uploads),
            least_dual=min(self.least_dual, now.dual),
            rule=1.0 + number,
        )

    def _with(self, auto: Auto, p: float, fresh: float, seen: Seen) -> Pace:
        """The running means with a round in them."""
        heard = self.heard + (1 - self.heard) * p
        weight = min(auto.max_move_weight, auto.move_weight * p)
        turn, loss = seen.cosine, self.loss
        if math.isfinite(seen.loss):
            loss = seen.loss if math.isnan(loss) else loss + auto.loss_weight * (seen.loss - loss)
        return replace(
            self,
            cosine=self.cosine if turn is None else self.cosine + auto.cosine_weight * (turn - self.cosine),
            move=fresh if math.isnan(self.move) else self.move + weight * (fresh - self.move),
            heard=heard,
            dual=math.sqrt(seen.dual) / heard,
            loss=loss,
            least_loss=min(self.least_loss, loss),
            most_loss=max(self.most_loss, loss),
        )


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
