"""How auto's strength changes after a round: what the server sees, and the rules that go by it, one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedvra.policies.auto import Auto

if TYPE_CHECKING:
    from fedvra.policies.pace import Pace


@dataclass(frozen=True)
class Signals:
    """What the rules look at after a round: the pace ``before`` it, and ``now``, with the round in its means."""

    auto: Auto
    p: float
    before: Pace
    now: Pace
    fresh: float
    """|S/T|^2 of this round."""
    back: float
    """How much of the last S this one takes back."""

    @property
    def uploads(self) -> float:
        """Root of the running mean of |S/T|^2."""
        return math.sqrt(self.now.move)

    @property
    def in_vain(self) -> bool:
        """The training loss does not fall: its mean is back above its lowest by a share of its range so far."""
        now = self.now
        return now.loss - now.least_loss > self.auto.regained * (now.most_loss - now.least_loss)

    @property
    def uploads_grown(self) -> bool:
        """One round's uploads, or their mean, are far above the mean's lowest."""
        bound = self.auto.grown_in_vain if self.in_vain else self.auto.grown
        lowest = self.before.least_move
        return math.sqrt(self.fresh) > self.auto.burst * lowest or self.uploads > bound * lowest

    @property
    def dual_grown(self) -> bool:
        return self.now.dual > (1 + self.auto.grown_dual / self.p) * self.before.least_dual


@dataclass(frozen=True)
class Rule:
    """A line of the table."""

    reason: str
    """In the record of the next round, beside its strength."""
    when: Callable[[Signals], bool]
    change: Callable[[Signals], float]
    """Of log sigma."""
    remembered: bool = False
    """Whether sigma may not grow back to where it was cut: its bound becomes the geometric mean of before and after."""


RULES = (
    Rule(
        "uploads came back larger",
        lambda s: s.back > 1,
        lambda s: math.log((1 + s.auto.back) / (1 + s.back)),
        remembered=True,
    ),
    Rule(
        "uploads grew",
        lambda s: s.uploads_grown,
        lambda s: 0.0 if s.fresh < s.before.move else -s.auto.cut,
        remembered=True,
    ),
    Rule(
        "the dual grew",
        lambda s: s.dual_grown,
        lambda s: -s.auto.cut if s.now.dual > s.before.dual else 0.0,
        remembered=True,
    ),
    Rule("uploads are the smallest so far", lambda s: s.uploads <= s.before.least_move, lambda s: s.auto.grow),
    Rule("steady", lambda s: True, lambda s: 0.0),
)
"""The first that applies counts."""
REASONS = ("start", *(rule.reason for rule in RULES))
