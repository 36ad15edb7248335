"""How auto's multiplier changes after a round: what the server sees, and the rules that go by it, one table."""

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
    before: Pace
    now: Pace
    fresh: float
    """|S/T|^2 of this round."""

    @property
    def uploads(self) -> float:
        """Root of the running mean of |S/T|^2."""
        return math.sqrt(self.now.move)

    @property
    def in_vain(self) -> bool:
        """The training loss does not fall: it is back above its lowest by a share of its range so far."""
        now = self.now
        return now.loss - now.least_loss > self.auto.regained * (now.most_loss - now.least_loss)

    @property
    def uploads_grown(self) -> bool:
        """Their mean is far above its lowest."""
        bound = self.auto.grown_in_vain if self.in_vain else self.auto.grown
        return self.uploads > bound * self.before.least_move


@dataclass(frozen=True)
class Rule:
    """A line of the table."""

    reason: str
    """In the record of the next round, beside its multiplier."""
    when: Callable[[Signals], bool]
    change: Callable[[Signals], float]
    """Of log sigma."""


RULES = (
    Rule("uploads grew", lambda s: s.uploads_grown, lambda s: 0.0 if s.fresh < s.before.move else -s.auto.cut),
    Rule("uploads are the smallest so far", lambda s: s.uploads <= s.before.least_move, lambda s: s.auto.grow),
    Rule("steady", lambda s: True, lambda s: 0.0),
)
"""The first that applies counts."""
REASONS = ("start", *(rule.reason for rule in RULES))
