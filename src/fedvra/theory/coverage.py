"""The answer to whether a run is covered by a theorem: conditions with both sides, what is promised, what would be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedvra.core.cohort import Floats, Ints
from fedvra.core.objects import Value
from fedvra.theory.conditions import Condition
from fedvra.theory.estimates import Estimates
from fedvra.theory.theorem1 import Theorem1
from fedvra.theory.theorem2 import Theorem2


class Start(NamedTuple):
    """The clients looked at, before the first round, when every dual is zero."""

    cost: float
    """f(x0)."""
    norm2: float
    """||grad f(x0)||^2."""
    xi: Floats
    """||grad f_i(x0)||^2, [n]."""
    lower: float
    """A lower bound of f."""


class Settings(NamedTuple):
    """What the run would do with the clients looked at, [R, n] over the rounds looked at."""

    p: Floats
    steps: Floats
    eta: Floats
    """[n]."""
    gamma: Floats | None
    """[n]; None where the run is no instance of FedVRA. So are a and d."""
    a: Floats | None
    d: Floats | None
    lr_y: Floats | None = None
    """eta_y [n], where there is a second block; so is Q_y."""
    steps_y: Floats | None = None


@dataclass(frozen=True)
class Coverage(Value):
    """The answer of :func:`fedvra.theory.check.check`."""

    label: str
    theorem: int
    rounds: int
    total: int
    clients: Ints
    """Those looked at."""
    estimates: Estimates
    settings: Settings
    start: Start
    reasons: tuple[str, ...]
    """Why the theorem does not speak of this run, whatever its numbers."""
    notes: tuple[str, ...]
    """What is to be known of the figures."""
    conditions: tuple[Condition, ...]
    """Of the run as it is; none where it is no instance of FedVRA."""
    setting: Theorem1 | Theorem2 | None
    """The run as it is."""
    proposal: Theorem1 | Theorem2 | None
    """What would be covered: appendix B's construction or, under Theorem 2, the like, with one gamma and one eta for all; None
    where no stepsizes would do."""

    @property
    def covered(self) -> bool:
        return not self.reasons and bool(self.conditions) and all(condition.holds for condition in self.conditions)

    def __repr__(self) -> str:
        failed = [condition.name for condition in self.conditions if not condition.holds]
        why = "; ".join([*self.reasons, *failed])
        return f"<Theorem {self.theorem} covers {self.label}>" if self.covered else (
            f"<Theorem {self.theorem} does not cover {self.label}: {why}>"
        )  # fmt: skip

    def promise(self, setting: Theorem1 | Theorem2) -> dict[str, float | None]:
        """D_1, D_2, P^0 and the bound under a setting that satisfies the conditions, as printed and as proved.

        Theorem 2's is given without noise.
        """
        potential = setting.potential(self.start.cost, self.start.xi)
        gap = potential - self.start.lower
        found: dict[str, float | None] = {"beta": setting.beta, "potential": potential, "lower": self.start.lower}
        if isinstance(setting, Theorem2):
            rate = setting.rate_constant()
            return {**found, "rate_constant": rate, "bound_without_noise": rate * gap / self.rounds}
        noise, proved = self.estimates.noise, setting.rate_constant()
        worst = float(noise.max())
        return {
            **found,
            "D1": setting.d1,
            "D2": setting.d2(),
            "bound_printed": setting.bound(gap, self.rounds, worst, d1=setting.d1),
            "D1_proved": proved,
            "D2_proved": setting.d2(proved),
            "bound": setting.bound(gap, self.rounds, noise),
            "bound_without_noise": setting.bound(gap, self.rounds),
            "rounds_until_it_tells": 2 * proved * gap / (setting.beta * self.start.norm2) if self.start.norm2 else None,
            "corollary": setting.corollary(gap, self.rounds, worst),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for --json."""
        settings = self.settings
        return {
            "covered": self.covered,
            "theorem": self.theorem,
            "algorithm": self.label,
            "rounds": self.rounds,
            "clients": self.total,
            "clients_looked_at": len(self.clients),
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "L": {**quantiles(self.estimates.L), "exact": self.estimates.exact},
            "noise": quantiles(self.estimates.noise),
            "p": {**quantiles(settings.p.min(0)), "least": float(settings.p.min())},
            "steps": quantiles(settings.steps),
            "start": {"cost": self.start.cost, "grad_norm2": self.start.norm2, "xi": quantiles(self.start.xi)},
            "conditions": [
                {
                    "name": condition.name,
                    "formula": condition.formula,
                    "holds": condition.holds,
                    "share": condition.share,
                    "left": quantiles(condition.left),
                    "right": quantiles(condition.right),
                }
                for condition in self.conditions
            ],
            "promise": self.promise(self.setting) if self.covered and self.setting is not None else None,
            "proposal": None if self.proposal is None else {**self.proposed(), **self.promise(self.proposal)},
        }

    def proposed(self) -> dict[str, Any]:
        """gamma, eta, a and d of the proposal: a number each where it is the same for all, else min, median and max.

        Under Theorem 2 also ``eta_y`` and ``lr_y_factor``: by what to multiply the ``lr_y`` of the problem to get there.
        """
        proposal = self.proposal
        if proposal is None:
            return {}
        tables = {name: getattr(proposal, name) for name in ("gamma", "eta", "a", "d")}
        if isinstance(proposal, Theorem2):
            tables["eta_y"] = proposal.lr_y
            if self.settings.lr_y is not None:
                tables["lr_y_factor"] = proposal.lr_y / self.settings.lr_y
        found = {name: quantiles(table) for name, table in tables.items()}
        return {
            name: q["median"] if np.isclose(q["min"], q["max"], rtol=1e-12, atol=0) else q for name, q in found.items()
        }


def quantiles(values: Floats) -> dict[str, float]:
    """
    >>> quantiles(np.array([3.0, 1.0, 2.0]))
    {'min': 1.0, 'median': 2.0, 'max': 3.0}
    """
    return {"min": float(np.min(values)), "median": float(np.median(values)), "max": float(np.max(values))}
