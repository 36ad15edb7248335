"""Where a, d, gamma and eta come from, besides plain numbers and tables: functions of the cohort.

A policy is any function of a :class:`~fedvra.cohort.Cohort` that returns one number per client; see ``Setting``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedvra.cohort import Cohort, Floats, Setting
from fedvra.errors import UsageError


@dataclass(frozen=True, repr=False)
class Policy:
    """A function of the cohort with a name, so that settings print and save as what they are."""

    name: str
    function: Callable[[Cohort], Floats]

    def __call__(self, cohort: Cohort) -> Floats:
        return self.function(cohort)

    def __repr__(self) -> str:
        return self.name


inverse_p = Policy("1/p", lambda cohort: 1.0 / cohort.p)
"""d_i = 1/p_i^r: makes the expected global model that of full participation, for any sampler (Remark 1)."""

POLICIES = {policy.name: policy for policy in (inverse_p,)}
"""Policies by the name they have on the command line and in config.yaml."""


def parse_setting(text: str | float | list[float]) -> Setting:
    """A setting as written on the command line or in a config file: a number, a list, or the name of a policy.

    >>> parse_setting("0.1"), parse_setting("1/p") is inverse_p
    (0.1, True)
    """
    if not isinstance(text, str):
        return text
    if text in POLICIES:
        return POLICIES[text]
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is neither a number nor a policy; known policies: {', '.join(POLICIES)}.") from None
