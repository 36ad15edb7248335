"""The value ``auto``: which constants FedVRA's self-chosen stepsizes go by."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from fedvra.core.errors import require
from fedvra.policies.policy import ForFedVRA


@dataclass(frozen=True, repr=False, kw_only=True)
class Auto(ForFedVRA):
    """Let FedVRA choose the stepsize; see :class:`~fedvra.policies.pace.Pace`.

    The fields are the constants of the rule, the same for every task. Those of gamma's ``auto`` count, or of a's where gamma is
    given; d has none.

    >>> import fedvra as fv
    >>> fv.FedVRA(gamma=0.1) == fv.FedVRA(gamma=0.1, a=fv.Auto(), d=fv.Auto())
    True
    >>> fv.FedVRA(gamma=fv.Auto(strongest=1.5))
    FedVRA(gamma=auto:strongest=1.5, a=auto, d=auto)
    """

    first: float = 1.0
    """sigma in the first round: the neutral point, where local work that gets to the end is neither repeated nor undone."""
    strongest: float = 1.9
    """The largest sigma: beyond 2 stiff directions diverge, and a little before where few take part."""
    stale: float = 300.0
    """...or stale*p^2 where that is less: between two visits to a client x0 travels about sigma*T/p^2 along lam."""
    memory: float = 10.0
    """n/p, the rounds that lam is a mean over, is never less than this: in large cohorts duals move slowly."""
    grow: float = 0.1
    """Of log sigma, per round whose uploads are the smallest so far: a larger sigma is earned."""
    cut: float = 0.5
    """Per round in which uploads have grown and still grow."""
    grown: float = 2.0
    """How much above its lowest so far the mean of uploads counts as grown."""
    grown_in_vain: float = 1.2
    """Likewise for the mean while the training loss does not fall."""
    regained: float = 0.125
    """The loss does not fall where it is above its lowest by more than this share of its whole range so far."""
    move_weight: float = 3.0
    """Times p: weight of a new round in the mean of squared uploads; at most 1."""

    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            least = "> 0" if name in ("first", "strongest") else ">= 0"
            value = getattr(self, name)
            fits = math.isfinite(value) and (value > 0 if least == "> 0" else value >= 0)
            require(fits, f"{name} of auto must be a finite number {least}, got {value:g}.")
        require(self.grow <= 1, f"grow of auto, of log sigma per round, must be at most 1, got {self.grow:g}.")

    def __repr__(self) -> str:
        """As the command line writes it: ``auto``, or ``auto:strongest=1.5`` with what differs from the default."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        said = [f"{name}={value:g}" for name, (value, usual) in values.items() if value != usual]
        return ":".join(filter(None, [self.name, ",".join(said)]))


auto = Auto()
