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

FIRST = 2.0
"""sigma in the first round: where theory's bound is for stiff directions, which few problems have much of."""
MOST = 3.0
"""sigma thereafter, and at most."""
STALE = 300.0
"""...but at most STALE*p^2: between two visits to a client x0 travels about sigma*T/p^2 along lam, which this bounds."""
KEPT = 0.75
"""Of the bound: what sigma gives up below this the server's step along lam does not."""
SWINGS = 9.0
"""...but at most SWINGS*sigma/bound visits: duals are not slowed at all where sigma was cut to 1/SWINGS of its bound."""
GROW = 0.1
"""Per round of progress (log sigma)."""
REST = 0.6
"""Times p, per round without any progress; at most MAX_REST, and no farther than :attr:`Pace.resting`."""
MAX_REST = 0.06
CUT = 0.5
"""Per round in which uploads, or the dual, have grown and still grow."""
RETURN = 0.5
"""After uploads came back larger than the last ones were, sigma is set so that this share of them would have come back."""
GROWN = 2.0
"""How much above its lowest so far the mean of uploads counts as grown."""
BURST = 4.0
"""Likewise for the uploads of a single round, against the lowest of the running mean."""
GROWN_IN_VAIN = 1.2
"""Likewise for the mean while the training loss does not fall."""
GROWN_DUAL = 0.25
"""Over p: by which share of its lowest so far the dual must be above it to count as grown. Where few take part it is noisy."""
LOSS_WEIGHT = 0.5
"""Of a new round in the mean of the training loss."""
REGAINED = 0.125
"""The loss does not fall where its mean is above its lowest by more than this share of its whole range so far."""
TURNED = -0.45
"""Mean cosine of successive uploads below which they undo each other."""
BRAKE = 0.5
"""Per round, times how far the cosine is below."""
COSINE_WEIGHT = 0.4
MOVE_WEIGHT = 3.0
"""Times p: weight of a new round in the mean of squared uploads; at most MAX_MOVE_WEIGHT."""
MAX_MOVE_WEIGHT = 0.3


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

    @classmethod
    def first(cls, p: float) -> Pace:
        """Before the first round.

        >>> Pace.first(0.1).sigma, round(Pace.first(0.02).sigma, 3)
        (2.0, 0.12)
        """
        most = max(p, min(MOST, STALE * p * p))
        return cls(min(FIRST, most), most)

    @classmethod
    def of(cls, cohort: Cohort) -> Pace:
        """As remembered from the last round, or the first."""
        if not cohort.memory:
            return cls.first(mean_p(cohort))
        names = cls.__dataclass_fields__
        require(
            cohort.memory.keys() == names.keys(),
            f"auto goes by {', '.join(names)}, and what it remembers is {', '.join(cohort.memory)}: another version wrote "
            "the checkpoint. Resume with that version, or start over.",
        )
        return cls(**cohort.memory)

    @property
    def visits(self) -> float:
        """n: in how many visits a dual takes its client's gradient. sigma*n is the server's step along lam in units of T/p.

        Where sigma must stay below KEPT of its bound, noise is mostly why: the step is kept and lam averages longer. A sigma
        far below means swings, which a longer memory would damp less: then n is 1 again.

        >>> [round(Pace(sigma, 3.0).visits, 2) for sigma in (3.0, 2.25, 1.0, 0.4, 0.2)]
        [1.0, 1.0, 2.25, 1.2, 1.0]
        """
        share = self.sigma / self.most
        return max(1.0, min(KEPT / share, SWINGS * share))

    @property
    def resting(self) -> float:
        """The sigma at which :attr:`visits` is largest, the lowest that the noise alone leads to.

        Down to here n makes up for sigma; below, n falls with it, and the server's step along lam with the square of sigma.

        >>> round(Pace(3.0, 3.0).resting, 3)
        0.866
        """
        return self.most * math.sqrt(KEPT / SWINGS)

    def numbers(self) -> dict[str, float]:
        return asdict(self)

    def after(self, p: float, T: float, seen: Seen) -> Pace:
        r"""The pace for the next round.

        sigma is cut when uploads take back more than the last ones brought (:attr:`Seen.back` above 1: stiff directions swing
        with growing amplitude); cut by two fifths when uploads have grown well above their lowest (divergence shows first
        there; a little above is enough where the training loss does not fall either) and still grow, and kept until they are
        down again; likewise for the dual, whose bound is higher the fewer take part; eased while successive uploads undo each
        other (cosine near -1: sigma is too much for stiff directions); raised by a tenth when uploads are the smallest so far;
        kept while only the dual, which lags, still falls; and lowered slowly when neither does, as one lowers a stepsize at
        the level of the noise, down to :attr:`resting`. The first round has nothing to compare: sigma is full after it.
        """
        heard = self.heard + (1 - self.heard) * p
        dual = math.sqrt(seen.dual) / heard
        fresh = seen.move / T**2
        weight = min(MAX_MOVE_WEIGHT, MOVE_WEIGHT * p)
        mean = fresh if math.isnan(self.move) else self.move + weight * (fresh - self.move)
        move = math.sqrt(mean)
        turn = seen.cosine
        cosine = self.cosine if turn is None else self.cosine + COSINE_WEIGHT * (turn - self.cosine)
        loss = self.loss
        if math.isfinite(seen.loss):
            loss = seen.loss if math.isnan(loss) else loss + LOSS_WEIGHT * (seen.loss - loss)
        least_loss, most_loss = min(self.least_loss, loss), max(self.most_loss, loss)
        in_vain = loss - least_loss > REGAINED * (most_loss - least_loss)
        grown = GROWN_IN_VAIN if in_vain else GROWN
        burst = math.sqrt(fresh) > BURST * self.least_move
        if seen.back > 1:
            change = math.log((1 + RETURN) / (1 + seen.back))
        elif burst or move > grown * self.least_move:
            change = 0.0 if fresh < self.move else -CUT
        elif dual > (1 + GROWN_DUAL / p) * self.least_dual:
            change = -CUT if dual > self.dual else 0.0
        elif math.isnan(self.move):
            change = math.log(self.most / self.sigma)
        elif cosine < TURNED:
            change = BRAKE * (cosine - TURNED)
        elif move <= self.least_move:
            change = GROW
        elif dual <= self.least_dual:
            change = 0.0
        else:
            change = max(-min(MAX_REST, REST * p), min(0.0, math.log(self.resting / self.sigma)))
        return replace(
            self,
            sigma=max(min(p, self.most), min(self.most, self.sigma * math.exp(change))),
            cosine=cosine,
            move=mean,
            least_move=min(self.least_move, move),
            least_dual=min(self.least_dual, dual),
            heard=heard,
            dual=dual,
            loss=loss,
            least_loss=least_loss,
            most_loss=most_loss,
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
